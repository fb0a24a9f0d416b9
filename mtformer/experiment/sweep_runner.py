"""The runs of a sweep, trained one after another or several at a time, each in a process of its own.

SWEEP/sweep.json holds what is planned and how the processes ended; the rest is told by the run directories themselves.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from filelock import FileLock, Timeout

from mtformer.config.loading import config_diff, dump_config, load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.errors import CheckpointError, ConfigError, MtformerError
from mtformer.experiment.run_state import read_state
from mtformer.experiment.runs import RunContents, summarize
from mtformer.experiment.sweep import PlannedRun, Sweep, command_line
from mtformer.files import write_text
from mtformer.run_dir import SCORES, SWEEP, SWEEP_LOCK
from mtformer.training.signals import StopSignal

PROGRAM = (sys.executable, "-m", "mtformer")
POLL_SECONDS = 0.1
THREADS = "OMP_NUM_THREADS"
DEVICES = "CUDA_VISIBLE_DEVICES"
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a training that saved because it was asked to stop."""
log = logging.getLogger("mtformer")


@dataclass
class SweepOutcome:
    """How a sweep ended."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Names, and what was wrong, in one line."""
    stopped_by: signal.Signals | None = None
    """The sweep was asked to stop; the trainings of that moment have saved."""


def run_sweep(
    sweep: Sweep, jobs: int | None = None, resume: bool = False, advance: Callable[[], object] = lambda: None
) -> SweepOutcome:
    """Trains the runs; one that fails does not stop the others.

    Args:
        sweep: the plan.
        jobs: processes at a time; default: one for each CUDA device that there is, else one.
        resume: leave runs that are finished, and go on with the others where they stopped.
        advance: called when a run needs nothing more.

    Raises:
        CheckpointError: when another sweep is at work in this folder, or this one has begun and `resume` is off.
    """
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with _alone(sweep):
        _check_free(sweep, resume)
        return _Running(sweep, jobs, advance).to_the_end()


def devices(sweep: Sweep) -> list[str]:
    """CUDA devices that the runs may use, as CUDA_VISIBLE_DEVICES names them."""
    if all(run.config.training.device == "cpu" for run in sweep.runs):
        return []
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(DEVICES)
    return (named.split(",") if named else [str(number) for number in range(count)])[:count]


def threads_each(jobs: int) -> int:
    """The share of each process in the cores there are, or in OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get(THREADS, "")
    return max(1, (int(asked) if asked.isdecimal() and int(asked) else cores) // jobs)


@dataclass
class _Job:
    """A process that trains a run."""

    run: PlannedRun
    process: "subprocess.Popen[bytes]"
    slot: int
    log: BinaryIO
    start_of_log: int


class _Running:
    """The processes of a sweep, and what is known of those that ended."""

    def __init__(self, sweep: Sweep, jobs: int | None, advance: Callable[[], object]) -> None:
        self.sweep, self.advance = sweep, advance
        self.devices = devices(sweep)
        self.jobs = jobs or max(1, len(self.devices))
        self.outcome = SweepOutcome()
        self.running: list[_Job] = []
        self.exit_codes: dict[str, int] = {}

    def to_the_end(self) -> SweepOutcome:
        """Starts and waits until all are done, or the processes that a signal stopped have saved."""
        waiting = []
        for run in self.sweep.runs:
            if is_done(run):
                self._count(run.name)
            else:
                waiting.append(run)
        if self.outcome.finished:
            log.info("finished before: %d of %d runs", len(self.outcome.finished), len(self.sweep.runs))
        if waiting:
            where = self.sweep.folder / "NAME.log"
            log.info("%d runs to train, %d at a time; each tells how it goes in %s", len(waiting), self.jobs, where)
        self._write()
        try:
            with _hang_up_is_terminate(), StopSignal() as stop:
                self._run(waiting, stop)
        except BaseException as error:  # none is left training behind our back
            self._pass_on(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            for job in self.running:
                job.process.wait()
            raise
        return self.outcome

    def _run(self, waiting: list[PlannedRun], stop: StopSignal) -> None:
        while self.running or (waiting and stop.received is None):
            while waiting and len(self.running) < self.jobs and stop.received is None:
                self._start(waiting.pop(0))
            time.sleep(POLL_SECONDS)
            if stop.received is not None and self.outcome.stopped_by is None:
                self.outcome.stopped_by = stop.received
                log.info("stopping: %d runs are asked to save", len(self.running))
                self._pass_on(stop.received)
            for job in [job for job in self.running if job.process.poll() is not None]:
                self.running.remove(job)
                self._end(job)

    def _start(self, run: PlannedRun) -> None:
        slot = min(set(range(self.jobs)) - {job.slot for job in self.running})
        environment = {**os.environ, THREADS: str(threads_each(self.jobs))}
        if self.devices:
            environment[DEVICES] = self.devices[slot % len(self.devices)]
        output = log_of(run).open("ab")
        # In a session of its own, so that Ctrl-C comes to it once: from here.
        process = subprocess.Popen(
            [*PROGRAM, *self.sweep.arguments(run)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
        self.running.append(_Job(run, process, slot, output, output.tell()))
        log.info("%s: started", run.name)

    def _end(self, job: _Job) -> None:
        job.log.close()
        run, code = job.run, job.process.returncode
        self.exit_codes[run.name] = code
        if code == 0:
            self._count(run.name)
            log.info("%s: finished%s", run.name, _result(run))
        elif self.outcome.stopped_by is not None and (code in STOPPED or -code in (signal.SIGINT, signal.SIGTERM)):
            log.info("%s: stopped at step %d", run.name, RunContents(run.run.path).step)
        else:
            self.outcome.failed[run.name] = _error(log_of(run), job.start_of_log, code)
            log.warning("%s: failed: %s", run.name, self.outcome.failed[run.name])
            self.advance()
        self._write()

    def _count(self, name: str) -> None:
        self.outcome.finished.append(name)
        self.advance()

    def _pass_on(self, number: signal.Signals) -> None:
        for job in self.running:
            job.process.send_signal(number)

    def _write(self) -> None:
        runs = [
            {
                "name": run.name,
                "values": run.values,
                "command": command_line(self.sweep, run),
                "exit_code": 0 if run.name in self.outcome.finished else self.exit_codes.get(run.name),
                "error": self.outcome.failed.get(run.name),
            }
            for run in self.sweep.runs
        ]
        plan = {"sweep": str(self.sweep.path), "config": str(self.sweep.config), "runs": runs}
        write_text(self.sweep.folder / SWEEP, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")


def log_of(run: PlannedRun) -> Path:
    """What the run's processes print; beside the run, which may not have a folder yet."""
    return run.run.path.with_name(f"{run.name}.log")


def is_done(run: PlannedRun) -> bool:
    """Whether it has reached its end with this config, and its test sets are scored."""
    try:
        if not run.run.config.is_file() or read_state(run.run).state != "finished":
            return False
        differences = config_diff(load_config(run.run.config).config, resolve_paths(run.config))
    except ConfigError:  # damaged: the training reports it
        return False
    scored = [(run.run.evaluation(name) / SCORES).is_file() for name in run.config.data.test]
    return not differences and all(scored)


@contextlib.contextmanager
def _alone(sweep: Sweep) -> Iterator[None]:
    try:
        with FileLock(sweep.folder / SWEEP_LOCK, timeout=0):
            yield
    except Timeout as error:
        raise CheckpointError(
            f"{sweep.folder}: another sweep is at work here; wait for it, or name another run_dir in {sweep.path}"
        ) from error


def _check_free(sweep: Sweep, resume: bool) -> None:
    there = [run.name for run in sweep.runs if run.run.path.exists()]
    if (there or (sweep.folder / SWEEP).exists()) and not resume:
        what = f"{len(there)} of the {len(sweep.runs)} runs are" if there else "a sweep is"
        raise CheckpointError(
            f"{sweep.folder}: {what} there already; --resume goes on, run_dir in {sweep.path} names another place"
        )


@contextlib.contextmanager
def _hang_up_is_terminate() -> Iterator[None]:
    """A terminal that is closed ends a sweep as SIGTERM does, unless it is to live on (`nohup`)."""
    previous = signal.getsignal(signal.SIGHUP)
    if previous != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


def _result(run: PlannedRun) -> str:
    """The best figure and the time, as far as they are known."""
    row = summarize(run.run.path)
    best = f": {row.metric} {row.best:.2f} at step {row.best_step:,}" if row.best is not None else ""
    return best + (f", {row.seconds / 60:.1f} minutes of training" if row.seconds is not None else "")


def _error(path: Path, start: int, code: int) -> str:
    """Why a process ended, in one line."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    if code in STOPPED:
        return "stopped by a signal, saved"
    with path.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (told[:1] or lines[-1:] or [f"exit code {code}"])[0]


class Estimate(NamedTuple):
    """Of one run."""

    seconds: float
    """Training, and validation at the most."""
    disk_bytes: int
    free_bytes: int


def estimate(sweep: Sweep, num_threads: int, advance: Callable[[], object] = lambda: None) -> list[Estimate]:
    """Estimate the needs of each run; of runs that differ in their seed only, one is tried, with one tokenizer.

    Args:
        sweep: the plan.
        num_threads: that a run will have.
        advance: called for each run.

    Raises:
        MtformerError: on the mistake that a run would have met, with the run's name.
    """
    import torch

    from mtformer.device import set_up_memory

    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    set_up_memory()
    estimated: dict[str, Estimate] = {}
    estimates = []
    try:
        with tempfile.TemporaryDirectory(prefix="mtformer-") as folder:
            for run in sweep.runs:
                key = _without_seed(run.config)
                if key not in estimated:
                    estimated[key] = _estimate(run, Path(folder))
                estimates.append(estimated[key])
                advance()
    finally:
        torch.set_num_threads(threads)
    return estimates


def finishing_time(seconds: Sequence[float], jobs: int) -> float:
    """Return when runs of these durations, started in this order, `jobs` at a time, have all ended."""
    ends = [0.0] * jobs
    for one in seconds:
        ends[ends.index(min(ends))] += one
    return max(ends)


def _estimate(run: PlannedRun, folder: Path) -> Estimate:
    from mtformer.device import pick_device, pick_precision
    from mtformer.experiment import preflight
    from mtformer.experiment.prepare import prepare_experiment
    from mtformer.experiment.train import make_step

    config = resolve_paths(run.config)
    try:
        device = pick_device(config.training.device)
        precision = pick_precision(config.training.precision, device)
        prepared = prepare_experiment(config, folder / _tokenizer_key(config))
        found = preflight.check_memory(config, prepared, make_step(config, prepared, device, precision), run.run)
    except MtformerError as error:
        raise type(error)(f"run {run.name}: {error}") from error
    return Estimate(found.training_seconds + found.validation_seconds, found.disk_bytes, found.free_bytes)


def _without_seed(config: Config) -> str:
    training = config.training.model_copy(update={"seed": 0})
    return dump_config(config.model_copy(update={"training": training}))


def _tokenizer_key(config: Config) -> str:
    """The same for configs that have the same tokenizer."""
    parts = [config.data.model_dump_json(), config.tokenizer.model_dump_json(), str(config.training.init_from)]
    return sha256("\n".join(parts).encode()).hexdigest()
