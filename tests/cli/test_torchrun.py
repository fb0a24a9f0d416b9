"""`torchrun -m mtformer train`: two processes on one machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from forked import Program, start_several

from mtformer.experiment.verify import compare_runs
from mtformer.files import META
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.weights import read_weights

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIONS = ("training.precision=fp32", "training.eps=1e-3", "model.dropout=0", "training.clip_norm=0.1")
"""fp32 without dropout, and an eps that prevents Adam from amplifying rounding errors in zero gradients."""


def start(corpus: Path, run: Path, *options: str, nodes: Sequence[str] = ("--standalone",)) -> "subprocess.Popen[str]":
    """Start `torchrun -m mtformer train small.yaml` with two processes on this node."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *nodes, "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*launcher, "-m", "mtformer", "train", str(corpus / "small.yaml"), *options, "--run-dir", str(run)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def train(corpus: Path, run: Path, *options: str, processes: int) -> str:
    """Train with this number of processes; return stderr of the first one."""
    arguments = ["train", corpus / "small.yaml", *options, "--run-dir", run]
    programs = start_several(processes, *arguments, folder=run.parent)
    codes = [program.wait() for program in programs]
    assert codes == [0] * processes, programs[0].stderr.read_text()
    return programs[0].stderr.read_text()


def train_rows(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in RunDir(run).metrics.read_text().splitlines()]
    return [row for row in rows if row["kind"] in ("train", "dev")]


@pytest.fixture(scope="module")
def of_two(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        process = start(corpus, run, *OPTIONS)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert stderr.count("device cpu") == 1, "only the main process logs"
    return run


@pytest.fixture(scope="module")
def of_one(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        train(corpus, run, *OPTIONS, "training.accumulation_steps=2", processes=1)
    return run


def assert_close(one: Path, two: Path) -> None:
    """Assert that two runs are equal up to the order of summation."""
    assert [path.name for path in RunDir(one).checkpoint_folders()] == [
        path.name for path in RunDir(two).checkpoint_folders()
    ]
    for folder in RunDir(one).checkpoint_folders():
        theirs = RunDir(two).checkpoints / folder.name
        for name, weight in read_weights(folder / WEIGHTS).items():
            torch.testing.assert_close(read_weights(theirs / WEIGHTS)[name], weight, rtol=1e-3, atol=1e-5)
        assert sorted(path.name for path in theirs.iterdir()) == sorted([META, TRAINER_STATE, WEIGHTS])
    for mine, other in zip(train_rows(one), train_rows(two), strict=True):
        for name in ("kind", "step", "epoch", "learning_rate", "skipped_steps", "padding"):
            assert mine.get(name) == other.get(name), name
        for name in {"loss", "nll", "perplexity", "bleu", "chrf", "grad_norm"} & mine.keys():
            assert mine[name] == pytest.approx(other[name], rel=1e-3), name


@pytest.mark.process
def test_two_processes_equal_one_with_twice_the_accumulation(of_one: Path, of_two: Path) -> None:
    assert_close(of_one, of_two)


@pytest.mark.process
def test_sharded_weights_give_the_same_run_and_files(corpus: Path, of_one: Path, tmp_path: Path) -> None:
    train(corpus, tmp_path / "run", *OPTIONS, "training.sharded=true", processes=2)
    assert_close(of_one, tmp_path / "run")


@pytest.mark.process
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_killed_and_resumed_run_is_bitwise_equal_to_an_uninterrupted_one(
    corpus: Path, tmp_path: Path, noise: float
) -> None:
    options = ("training.validate_every=3", f"data.noise.typos={noise}", "--resume", "auto")
    train(corpus, tmp_path / "whole", *options, processes=2)
    halves = tmp_path / "halves"
    arguments = ["train", corpus / "small.yaml", *options, "--run-dir", halves]
    programs = start_several(2, *arguments, folder=tmp_path)
    while not RunDir(halves).steps():
        time.sleep(0.01)
        assert [program.exit_code for program in programs] == [None, None]
    for program in programs:
        program.signal(signal.SIGKILL)
    assert [program.wait() for program in programs] == [-signal.SIGKILL] * 2
    train(corpus, halves, *options, processes=2)
    different = [part for part in compare_runs(RunDir(tmp_path / "whole"), RunDir(halves)) if part.difference]
    assert different == []


@pytest.mark.process
def test_resuming_with_another_number_of_processes_is_logged(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(corpus, run, "training.max_steps=8", processes=2)
    stderr = train(corpus, run, "training.max_steps=12", "--resume", processes=1)
    assert "2 -> 1" in stderr
    assert "the run now differs from an uninterrupted one" in stderr
    assert "done at step 12 of 12" in stderr
    stderr = train(corpus, run, "training.max_steps=16", "--resume", processes=2)
    assert "1 -> 2" in stderr
    assert RunDir(run).steps()[-1] == 16


@pytest.mark.process
def test_sigterm_saves_once_and_stops_all_processes(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(corpus, run, "training.max_steps=100000", "training.keep_last=2")
    while not RunDir(run).steps():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert stderr.count("saved; resume in several processes, as before, with: mtformer train") == 1, stderr
    assert f"stopped at step {RunDir(run).steps()[-1]}, checkpoint saved" in stderr
    assert process.returncode != 0


@pytest.mark.process
def test_a_user_error_is_reported_once(corpus: Path, tmp_path: Path) -> None:
    process = start(corpus, tmp_path / "run", "data.train.0.src=nowhere.en")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert len([line for line in stderr.splitlines() if line.startswith("error:")]) == 1, stderr
    assert "nowhere.en" in stderr


@pytest.mark.process
@pytest.mark.parametrize("victim", [0, 1])
def test_all_processes_stop_if_one_dies(corpus: Path, tmp_path: Path, victim: int) -> None:
    run = tmp_path / "run"
    process = start(corpus, run, "training.max_steps=100000", "training.keep_last=2")
    while not RunDir(run).steps():
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(children(process.pid)[victim], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert len([line for line in stderr.splitlines() if line.startswith("error:")]) <= 1, stderr


@pytest.mark.process
def test_a_run_on_two_nodes_is_resumed_after_a_process_died(corpus: Path, tmp_path: Path) -> None:
    options = ("training.validate_every=3", "--resume", "auto")
    train(corpus, tmp_path / "whole", *options, processes=4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "run")
    agents = [start(corpus, tmp_path / "run", *options, nodes=nodes) for _ in range(2)]
    while not RunDir(tmp_path / "run").steps():
        time.sleep(0.01)
        assert [agent.poll() for agent in agents] == [None, None]
    os.kill(children(agents[1].pid)[0], signal.SIGKILL)
    stderr = "".join(agent.communicate(timeout=300)[1] for agent in agents)
    assert all(agent.returncode != 0 for agent in agents)
    assert len([line for line in stderr.splitlines() if line.startswith("error:")]) <= 1, stderr
    agents = [start(corpus, tmp_path / "run", *options, nodes=nodes) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    different = [part for part in compare_runs(RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")) if part.difference]
    assert different == []


def children(pid: int) -> list[int]:
    """Return the child processes of a process, in the order in which they started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.process
def test_processes_of_srun_find_each_other(corpus: Path, tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    arguments = ["train", corpus / "small.yaml", "training.max_steps=2", "--run-dir", tmp_path / "run"]
    programs = [
        Program(*arguments, stderr=tmp_path / f"stderr.{rank}", SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **job)
        for rank in range(2)
    ]
    assert [program.wait() for program in programs] == [0, 0]
    assert programs[0].stderr.read_text().count("device cpu") == 1
    assert programs[1].stderr.read_text() == "", "only the first process logs"
