"""Train the runs of a sweep, each in its own process, one or several at a time.

SWEEP/sweep.json contains the plan and the exit codes; everything else is in the run directories.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mtformer.cluster.cores import num_cores
from mtformer.cluster.workers import Workers, use_ray
from mtformer.config.loading import config_diff, dump_config, load_config, resolve_paths
from mtformer.errors import CheckpointError, ConfigError, DataError, MtformerError, log
from mtformer.experiment.run_state import read_state
from mtformer.experiment.runs import RunContents, summarize
from mtformer.experiment.sweep import PlannedRun, Sweep
from mtformer.files import locked, write_json, write_text
from mtformer.run_dir import SCORES, SWEEP, SWEEP_LOCK, SWEEP_STOP
from mtformer.training.signals import StopSignal

if TYPE_CHECKING:
    from mtformer.experiment.preflight import MemoryCheck

PROGRAM = (sys.executable, "-m", "mtformer")
POLL_SECONDS = 0.1
THREADS = "OMP_NUM_THREADS"
DEVICES = "CUDA_VISIBLE_DEVICES"
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a training process that saved a checkpoint after a signal."""


@dataclass
class SweepOutcome:
    """Result of a sweep."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """One-line error of each failed run, by name."""
    stopped_by: signal.Signals | None = None
    """Signal that stopped the sweep; all runs have saved checkpoints."""


def run_sweep(
    sweep: Sweep,
    jobs: int | None = None,
    resume: bool = False,
    advance: Callable[[], object] = lambda: None,
    on: str | None = None,
) -> SweepOutcome:
    """Train the runs of a sweep, `jobs` at once (default: one per CUDA device, or one on the CPU).

    A failed run does not stop the others. If `resume`, finished runs are skipped, and the others resumed or started.
    On Ray (`on`: see `use_ray`), the default is one run per GPU, or per node; if a node ends, its run is resumed.
    `advance` is called when a run finishes or fails. Raise CheckpointError if another sweep runs in this folder, or
    this sweep was already started and `resume` is False.
    """
    refusal = f"{sweep.folder}: another sweep is running here; wait for it, or set another run_dir in {sweep.path}"
    with locked(sweep.folder / SWEEP_LOCK, CheckpointError(refusal)):
        begun = [run.name for run in sweep.runs if run.run.path.exists()]
        if (begun or (sweep.folder / SWEEP).exists()) and not resume:
            what = f"{len(begun)} of the {len(sweep.runs)} runs already exist" if begun else "a sweep already exists"
            raise CheckpointError(f"{sweep.folder}: {what}; add --resume, or set another run_dir in {sweep.path}")
        with use_ray(on):
            return _Runner(sweep, jobs, advance, on).run()


def devices(sweep: Sweep) -> list[str]:
    """Return the CUDA devices that the runs may use, in the format of CUDA_VISIBLE_DEVICES."""
    if all(run.config.training.device == "cpu" for run in sweep.runs):
        return []
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(DEVICES)
    return (named.split(",") if named else [str(number) for number in range(count)])[:count]


def threads_each(jobs: int) -> int:
    """Return the number of threads per process: its share of OMP_NUM_THREADS, or of all cores if that is not set."""
    limit = os.environ.get(THREADS, "")
    return max(1, (int(limit) if limit.isdecimal() and int(limit) else num_cores()) // jobs)


class _Job(NamedTuple):
    """Training process of a run."""

    run: PlannedRun
    command: list[str]
    log_file: Path
    start_of_log: int
    stop_file: Path
    """File with the signal that the process receives when the file appears or changes; on Ray, all nodes see it."""
    threads: int | None
    """Number of threads; None: Ray determines it."""
    cuda_device: str | None
    """None: all devices, or those that Ray assigns."""


class _Runner:
    """Runs the processes of a sweep and collects their results."""

    def __init__(self, sweep: Sweep, jobs: int | None, advance: Callable[[], object], on: str | None) -> None:
        self.sweep, self.jobs, self.advance = sweep, jobs, advance
        self.is_local = on is None
        self.devices = devices(sweep) if self.is_local else []
        self.stop_file = sweep.folder / SWEEP_STOP
        self.stop = StopSignal(self._stop)
        self.running = Counter[str | None]()
        """Number of running processes, by device."""
        self.outcome = SweepOutcome()
        self.exit_codes: dict[str, int] = {}

    def run(self) -> SweepOutcome:
        """Train all unfinished runs; after a signal, return when the active runs have saved checkpoints."""
        waiting = []
        for run in self.sweep.runs:
            if is_done(run):
                self._count(run.name)
            else:
                waiting.append(run)
        if self.outcome.finished:
            log.info("already finished: %d of %d runs", len(self.outcome.finished), len(self.sweep.runs))
        self._write()
        on_cpu = all(run.config.training.device == "cpu" for run in self.sweep.runs)
        jobs = self.jobs or (max(1, len(self.devices)) if self.is_local else None)
        self.stop_file.unlink(missing_ok=True)  # of a sweep that was killed
        with self.stop, Workers(_train, jobs, "cpu" if on_cpu else "auto", starts_programs=True) as workers:
            if waiting:
                where = self.sweep.folder / "NAME.log"
                log.info("training %d runs, %d at a time; logs: %s", len(waiting), workers.num_processes, where)
            try:
                for job, result in workers.as_completed(self._jobs(waiting, workers.num_processes)):
                    self._end(job, result)
            except BaseException as error:  # leave no process running
                self._send(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
                raise
        self.stop_file.unlink(missing_ok=True)
        return self.outcome

    def _stop(self) -> None:
        self.outcome.stopped_by = self.stop.received
        self._send(signal.SIGTERM)  # Ray's processes ignore SIGINT until the training starts
        log.info("stopping: waiting for %d runs to save checkpoints", self.running.total())

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all processes; after another signal, SIGINT ends them without a checkpoint."""
        write_text(self.stop_file, str(int(number)))

    def _jobs(self, waiting: Sequence[PlannedRun], num_jobs: int) -> Iterator[_Job]:
        """Yield the jobs of runs until a signal; a job is taken when it can start."""
        threads = threads_each(num_jobs) if self.is_local else None
        for run in waiting:
            if self.stop.received is not None:
                return
            log_file = run.run.path.with_name(f"{run.name}.log")
            start_of_log = log_file.stat().st_size if log_file.exists() else 0
            command = [*PROGRAM, *self.sweep.arguments(run)]
            device = min(self.devices, key=self.running.__getitem__, default=None)
            self.running[device] += 1
            log.info("%s: started", run.name)
            yield _Job(run, command, log_file, start_of_log, self.stop_file, threads, device)

    def _end(self, job: _Job, result: "Future[int]") -> None:
        run = job.run
        self.running[job.cuda_device] -= 1
        try:
            code = result.result()
        except MtformerError as error:  # the process has not started, or Ray gave up
            code = STOPPED[1] if self.outcome.stopped_by is not None else 2
            with job.log_file.open("a", encoding="utf-8") as file:
                file.write(f"error: {error}\n")
        self.exit_codes[run.name] = code
        if code == 0:
            self._count(run.name)
            log.info("%s: finished%s", run.name, _result(run))
        elif self.outcome.stopped_by is not None and (code in STOPPED or -code in (signal.SIGINT, signal.SIGTERM)):
            log.info("%s: stopped at step %d", run.name, RunContents(run.run.path).step)
        else:
            self.outcome.failed[run.name] = _error(job.log_file, job.start_of_log, code)
            log.warning("%s: failed: %s", run.name, self.outcome.failed[run.name])
            self.advance()
        self._write()

    def _count(self, name: str) -> None:
        self.outcome.finished.append(name)
        self.advance()

    def _write(self) -> None:
        runs = [
            {
                "name": run.name,
                "values": run.values,
                "command": self.sweep.command_line(run),
                "exit_code": 0 if run.name in self.outcome.finished else self.exit_codes.get(run.name),
                "error": self.outcome.failed.get(run.name),
            }
            for run in self.sweep.runs
        ]
        plan = {"sweep": str(self.sweep.path), "config": str(self.sweep.config), "runs": runs}
        write_json(self.sweep.folder / SWEEP, plan, indent=1)


def _train(job: _Job, num_threads: int) -> int:
    """Train a run, send it the signals in the stop file, and return the exit code."""
    if not job.log_file.parent.is_dir():
        raise DataError(f"{job.log_file.parent}: no such folder; use a folder that all nodes share")
    given = {THREADS: job.threads, DEVICES: job.cuda_device}
    environment = os.environ | {name: str(value) for name, value in given.items() if value is not None}
    with job.log_file.open("ab") as output:
        # The new session ensures that Ctrl-C in a terminal does not reach the process.
        process = subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    sent = ""
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        if job.stop_file.exists() and (number := job.stop_file.read_text()) != sent:
            process.send_signal(int(number))
            sent = number
    return process.returncode


def is_done(run: PlannedRun) -> bool:
    """Return True if the run finished with this config, and has its report and scores on all of its test sets."""
    try:
        if not run.run.config.is_file() or read_state(run.run).state != "finished":
            return False
        differences = config_diff(load_config(run.run.config).config, resolve_paths(run.config))
    except ConfigError:  # the training process reports a damaged config
        return False
    data, end = run.config.data, run.run.state.stat().st_mtime  # later than scores of earlier training
    names = [(name, f"{name}.{'-'.join(data.languages(one)[::-1])}") for name, one in data.test.items()]
    cards = [run.run.evaluation(name) / SCORES for both in names for name in both[: 1 + data.both_directions]]
    made = cards + [run.run.report] * run.config.training.report
    return not differences and all(file.is_file() and file.stat().st_mtime >= end for file in made)


def _result(run: PlannedRun) -> str:
    """Return the best score and the training time of a run, if known."""
    row = summarize(run.run.path)
    best = f": {row.metric} {row.best:.2f} at step {row.best_step:,}" if row.best is not None else ""
    return best + (f", {row.seconds / 60:.1f} minutes of training" if row.seconds is not None else "")


def _error(path: Path, start: int, code: int) -> str:
    """Return a one-line reason for the failure of a process."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    if code in STOPPED:
        return "stopped by a signal after saving a checkpoint"
    with path.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors[:1] or lines[-1:] or [f"exit code {code}"])[0]


def estimate(sweep: Sweep, num_threads: int, advance: Callable[[], object] = lambda: None) -> list["MemoryCheck"]:
    """Check the memory needed by each run, which uses `num_threads`; runs that differ only in their seed share a check.

    `advance` is called after each run. Raise MtformerError, with the run's name, on an error that training would meet.
    """
    from mtformer.device import use_threads
    from mtformer.experiment.preflight import try_config

    checks: dict[str, MemoryCheck] = {}
    found = []
    with use_threads(num_threads):
        for run in sweep.runs:
            training = run.config.training.model_copy(update={"seed": 0})
            key = dump_config(run.config.model_copy(update={"training": training}))
            try:
                checks[key] = checks.get(key) or try_config(run.config, run.run)[-1]
            except MtformerError as error:
                raise type(error)(f"run {run.name}: {error}") from error
            found.append(checks[key])
            advance()
    return found


def finishing_time(seconds: Sequence[float], jobs: int) -> float:
    """Return the total time of runs with these durations, started in this order, `jobs` at a time."""
    ends = [0.0] * jobs
    for one in seconds:
        ends[ends.index(min(ends))] += one
    return max(ends)
