"""Tasks on two nodes of a Ray cluster, which run on this machine."""

import hashlib
import json
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked import Program
from program import invoke
from typer.testing import Result

from mtformer.cli import line_files
from mtformer.cluster import ray_tasks
from mtformer.cluster.workers import Workers, use_ray
from mtformer.data.store import prepare
from mtformer.errors import ConfigError, DataError, require_extra
from mtformer.experiment import distill
from mtformer.experiment.verify import compare_runs
from mtformer.run_dir import RunDir

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.process
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}
HERE = f"node {platform.node()}: "


@pytest.fixture
def cluster(two_nodes: Cluster) -> Cluster:
    """Return the cluster, in which a node that an earlier test removed is replaced."""
    while len(two_nodes.list_all_nodes()) < 2:
        two_nodes.add_node(**NODE)
    return two_nodes


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the tasks import this module
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = Cluster(initialize_head=True, head_node_args=NODE)
        patch.setenv("RAY_ADDRESS", started.address)
        yield started
        started.shutdown()


def wait_for(happens: Any, program: Program) -> None:
    while not happens():
        assert program.exit_code is None, program.stderr.read_text()
        time.sleep(0.01)


# ---- tasks ----------------------------------------------------------------------------------------------------------


def square(number: int, num_threads: int) -> tuple[int, str]:
    time.sleep(0.2)
    return number**2, ray.get_runtime_context().get_node_id()


def fail(error: Exception, item: None, num_threads: int) -> None:
    raise error


def need_an_extra(item: None, num_threads: int) -> None:
    require_extra("--this", "that", "no_such_module")


def folder(item: None, num_threads: int) -> str:
    return os.getcwd()


def end_at_first(path: Path, item: None, num_threads: int) -> int:
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return path.stat().st_size


def on_ray(function: Any, items: Any = (None,)) -> list[Any]:
    with use_ray("ray"), Workers(function, 1) as workers:
        return [result for _, result in workers.map(items)]


def test_results_keep_the_order_and_both_nodes_work(cluster: Cluster) -> None:
    results = on_ray(square, range(12))
    assert [result for result, _ in results] == [number**2 for number in range(12)]
    assert len({node for _, node in results}) == 2


def test_a_result_is_yielded_before_an_item_that_has_to_be_waited_for(cluster: Cluster) -> None:
    results: list[int] = []

    def items() -> Iterator[int]:
        for number in range(5):
            assert len(results) == number, "the next item is written after the answer"
            yield number

    with use_ray("ray"), Workers(square, 1) as workers:
        for _, (result, _) in workers.map(items(), pauses=lambda: True):
            results.append(result)
    assert results == [0, 1, 4, 9, 16]


def test_a_task_runs_in_the_folder_of_the_driver(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert on_ray(folder) == [str(tmp_path)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (partial(fail, DataError("train.en: no such file")), HERE + "train.en: no such file"),
        (partial(fail, PermissionError(13, "Permission denied", "a")), HERE + "[Errno 13] Permission denied: 'a'"),
        (need_an_extra, HERE + "--this needs no_such_module: pip install 'mtformer[that]'"),
        (partial(fail, ZeroDivisionError("by zero")), "a task failed on Ray: by zero"),
    ],
)
def test_an_error_is_one_line_with_the_node(cluster: Cluster, function: Any, message: str) -> None:
    with pytest.raises((DataError, ConfigError)) as error:
        on_ray(function)
    assert str(error.value) == message


def test_nodes_with_another_version_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "__version__", "9.9")
    with pytest.raises(ConfigError, match=rf"^{HERE}mtformer [\d.]+ is installed; install 9.9 on all nodes$"):
        on_ray(square, [1])


def test_nodes_without_mtformer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtformer", None)
    task = ray_tasks._make_task()
    assert task(b"", b"", "", "1.2") == (f"{HERE}mtformer 1.2 is not installed; install it on all nodes", None)


def test_a_task_is_repeated_if_its_process_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    assert on_ray(partial(end_at_first, tmp_path / "file")) == [3]


def test_tasks_of_a_killed_node_are_repeated(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (doomed,) = cluster.worker_nodes
    results = []
    with use_ray("ray"), Workers(square, 1) as workers, caplog.at_level(logging.WARNING):
        for _, (result, _) in workers.map(range(30)):
            results.append(result)
            if len(results) == 3:
                cluster.remove_node(doomed, allow_graceful=False)
    assert results == [number**2 for number in range(30)]
    assert capsys.readouterr().out == "", "Ray's messages are logged"


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "RAY_ADDRESS"])
def test_a_cluster_that_does_not_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "CONNECT_SECONDS", 0.5)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(ConfigError, match=r"127.0.0.1:1: no Ray cluster answers within 0.5 seconds"),
        use_ray("ray" if address == "RAY_ADDRESS" else address),
    ):
        pass


def test_an_invalid_address() -> None:
    message = r"^--on slurm: not an address of Ray; use ray, or ray://HOST:PORT$"
    with pytest.raises(ConfigError, match=message), use_ray("slurm"):
        pass


# ---- commands -------------------------------------------------------------------------------------------------------


def checked(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def hashes(path: Path) -> dict[str, str]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_data_commands_write_the_same_bytes(
    cluster: Cluster, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "SHARD_PAIRS", 100)
    config, written = corpus / "small.yaml", []
    for name, options in (("local", []), ("ray", ["--on", "ray"])):
        path = tmp_path / name
        result = checked("data", "prepare", config, f"data.cache_dir={path}", *options)
        assert "600 pairs" in result.stdout
        checked("data", "check", config, "--json", path / "check.json", *options)
        checked("data", "clean", config, path / "clean", *options)
        written.append({file: sha256 for file, sha256 in hashes(path).items() if not file.endswith(".lock")})
    assert written[0] == written[1]
    assert sum("shard-" in file for file in written[0]) == 7


def test_a_folder_that_is_not_shared_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    job = prepare._Job(None, tmp_path / "absent.building", True)  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=rf"^{HERE}{tmp_path}: .* set data.cache_dir to a folder that all machines share"
    ):
        on_ray(job.make_shard)


def test_translate_resumes_and_gives_the_same_lines(
    cluster: Cluster, trained: tuple[Path, Result], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 40)
    source, run = tmp_path / "source", trained[0]
    source.write_text((corpus / "train.en").read_text())
    local = checked("translate", run, "--input", source, "--json").stdout
    assert checked("translate", run, "--input", source, "--json", "--on", "ray").stdout == local

    path = tmp_path / "output"
    driver = Program(
        "translate", run, "--input", source, "--output", path, "--json", "--on", "ray", stderr=tmp_path / "stderr",
        RAY_ADDRESS=cluster.address,
    )  # fmt: skip
    partial_file = tmp_path / "output.partial"
    wait_for(lambda: partial_file.exists() and partial_file.stat().st_size, driver)
    driver.signal(signal.SIGKILL)
    driver.wait()
    resumed = checked("translate", run, "--input", source, "--output", path, "--json", "--on", "ray", "--continue")
    assert "continuing after line" in resumed.stderr
    assert path.read_text() == local


def test_a_missing_model_names_the_node(cluster: Cluster, tmp_path: Path, corpus: Path) -> None:
    result = invoke("translate", tmp_path / "no-run", "--input", corpus / "test.en", "--on", "ray")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {HERE}{tmp_path / 'no-run'}: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


class KeepAll(distill._TranslateShard):
    def __call__(self, shard: distill._Shard, num_threads: int) -> list[tuple[str, str]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distill, "best_text", lambda src, n_best, reference: n_best.text or "leer")
            return super().__call__(shard, num_threads)


def test_distill_translates_on_ray(
    cluster: Cluster, trained: tuple[Path, Result], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "SHARD_LINES", 200)
    monkeypatch.setattr(distill, "_TranslateShard", KeepAll)
    student = tmp_path / "student.yaml"
    filters = "{max_repeats: null, max_filtered_share: 1.0}"
    student.write_text((corpus / "small.yaml").read_text().replace("data:\n", f"data:\n  filters: {filters}\n"))
    for name, options in (("local", []), ("ray", ["--on", "ray"])):
        checked("distill", trained[0], "--config", student, "--run-dir", tmp_path / name, *options)
    texts = [(RunDir(tmp_path / name).corpus / distill.DISTILLED).read_text() for name in ("local", "ray")]
    assert texts[0] == texts[1]
    assert texts[0].count("\n") == 600


def test_a_sweep_resumes_the_run_of_a_killed_node(
    cluster: Cluster, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as on the nodes
    (doomed,) = cluster.worker_nodes
    settings = "data.test: {}, training.max_steps: 40, training.average_last: 0, training.precision: fp32"
    for name in ("ray", "local"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"config: {corpus}/small.yaml\nrun_dir: {tmp_path}/{name}\nset: {{{settings}}}\nseeds: [1, 2]\n"
        )
    sweep = Program(
        "sweep", tmp_path / "ray.yaml", "--on", "ray", stderr=tmp_path / "stderr", RAY_ADDRESS=cluster.address
    )
    runs = [RunDir(tmp_path / "ray" / f"seed={seed}") for seed in (1, 2)]
    wait_for(lambda: all(any(run.checkpoints.glob("step*")) for run in runs), sweep)
    cluster.remove_node(doomed, allow_graceful=False)
    assert sweep.wait() == 0, sweep.stderr.read_text()
    plan = json.loads((tmp_path / "ray" / "sweep.json").read_text())
    assert [run["exit_code"] for run in plan["runs"]] == [0, 0]
    checked("sweep", tmp_path / "local.yaml")
    for run in runs:
        assert all(one.difference is None for one in compare_runs(run, RunDir(tmp_path / "local" / run.path.name)))


def test_an_interrupted_sweep_saves_checkpoints(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    settings = "data.test: {}, training.max_steps: 100_000"
    path.write_text(f"config: {corpus}/small.yaml\nrun_dir: {tmp_path}/runs\nset: {{{settings}}}\nseeds: [1, 2]\n")
    sweep = Program("sweep", path, "--on", "ray", stderr=tmp_path / "stderr", RAY_ADDRESS=cluster.address)
    runs = [RunDir(tmp_path / "runs" / f"seed={seed}") for seed in (1, 2)]
    wait_for(lambda: all(any(run.checkpoints.glob("step*")) for run in runs), sweep)
    sweep.signal(signal.SIGINT)
    assert sweep.wait() == 130, sweep.stderr.read_text()
    assert "0 of 2 runs finished; resume with: mtformer sweep" in sweep.stderr.read_text()
    logs = [(tmp_path / "runs" / f"seed={seed}.log").read_text() for seed in (1, 2)]
    assert all("resume with" in text for text in logs)
