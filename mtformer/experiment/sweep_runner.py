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
from typing import TYPE_CHECKING, Any, NamedTuple

from mtformer.cluster.cores import num_cores
from mtformer.cluster.workers import Workers, use_ray
from mtformer.config.data import DataConfig
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
"""Command of a training process, before its arguments."""
POLL_SECONDS = 0.1
"""Time between two looks at a training process and the stop file."""
THREADS = "OMP_NUM_THREADS"
"""Environment variable with the number of threads of a process."""
DEVICES = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the CUDA devices that a process may use."""
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
    """Train the runs of a sweep; a failed run does not stop the others.

    Args:
        sweep: the runs.
        jobs: number of runs that are trained at once. Default: one per CUDA device, or one on the CPU; on Ray, one per
            GPU, or per node.
        resume: skip finished runs, and resume or start the others.
        advance: function that is called when a run finishes or fails.
        on: Ray cluster, see `use_ray`. If a node ends, its run is resumed on another one.

    Raise CheckpointError if another sweep runs in this folder, or this sweep was already started and `resume` is False.
    """
    refusal = f"{sweep.folder}: another sweep is running here; wait for it, or set another run_dir in {sweep.path}"
    with locked(sweep.folder / SWEEP_LOCK, CheckpointError(refusal)):
        if not resume:
            _require_new(sweep)
        with use_ray(on):
            return _Runner(sweep, jobs, advance, is_local=on is None).run()


def _require_new(sweep: Sweep) -> None:
    """Raise CheckpointError if this sweep, or another one in this folder, was already started."""
    num_existing = sum(run.run.path.exists() for run in sweep.runs)
    if num_existing:
        problem = f"{num_existing} of the {len(sweep.runs)} runs already exist"
    elif (sweep.folder / SWEEP).exists():
        problem = "a sweep already exists"
    else:
        return
    raise CheckpointError(f"{sweep.folder}: {problem}; continue with --resume, or set another run_dir in {sweep.path}")


def devices(sweep: Sweep) -> list[str]:
    """Return the CUDA devices that the runs may use, in the format of CUDA_VISIBLE_DEVICES."""
    if _is_on_cpu(sweep):
        return []
    import torch

    num_devices = torch.cuda.device_count()
    visible = os.environ.get(DEVICES)
    names = visible.split(",") if visible else list(map(str, range(num_devices)))
    return names[:num_devices]


def _is_on_cpu(sweep: Sweep) -> bool:
    """Return True if the configs of all runs set the device `cpu`."""
    return all(run.config.training.device == "cpu" for run in sweep.runs)


def threads_each(jobs: int) -> int:
    """Return the number of threads per process: its share of OMP_NUM_THREADS, or of all cores if that is not set."""
    limit = os.environ.get(THREADS, "")
    num_threads = int(limit) if limit.isdecimal() else 0
    return max(1, (num_threads or num_cores()) // jobs)


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

    def __init__(self, sweep: Sweep, jobs: int | None, advance: Callable[[], object], is_local: bool) -> None:
        self.sweep = sweep
        self.advance = advance
        self.is_local = is_local
        """False: on Ray."""
        self.devices = devices(sweep) if is_local else []
        if jobs is None and is_local:
            jobs = max(1, len(self.devices))
        self.jobs = jobs
        """None: Ray determines it."""
        self.stop_file = sweep.folder / SWEEP_STOP
        self.stop = StopSignal(self._stop)
        self.running = Counter[str | None]()
        """Number of running processes, by device."""
        self.outcome = SweepOutcome()
        self.exit_codes: dict[str, int] = {}

    def run(self) -> SweepOutcome:
        """Train all unfinished runs; after a signal, return when the active runs have saved checkpoints."""
        waiting = self._unfinished_runs()
        self._write()

        device = "cpu" if _is_on_cpu(self.sweep) else "auto"
        self.stop_file.unlink(missing_ok=True)  # of a sweep that was killed
        with self.stop, Workers(_train, self.jobs, device, starts_programs=True) as workers:
            if waiting:
                logs = self.sweep.folder / "NAME.log"
                log.info("training %d runs, %d at a time; logs: %s", len(waiting), workers.num_processes, logs)
            try:
                for job, result in workers.as_completed(self._jobs(waiting, workers.num_processes)):
                    self._end(job, result)
            except BaseException as error:  # leave no process running
                self._send(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
                raise
        self.stop_file.unlink(missing_ok=True)
        return self.outcome

    def _unfinished_runs(self) -> list[PlannedRun]:
        """Return the runs that are to be trained, and count the others as finished."""
        unfinished = []
        for run in self.sweep.runs:
            if is_done(run):
                self._count(run.name)
            else:
                unfinished.append(run)
        if self.outcome.finished:
            log.info("already finished: %d of %d runs", len(self.outcome.finished), len(self.sweep.runs))
        return unfinished

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
        """Record the result of a training process that has ended."""
        run = job.run
        self.running[job.cuda_device] -= 1
        is_stopping = self.outcome.stopped_by is not None
        try:
            exit_code = result.result()
        except MtformerError as error:  # the process has not started, or Ray gave up
            exit_code = 128 + signal.SIGTERM if is_stopping else 2
            with job.log_file.open("a", encoding="utf-8") as file:
                file.write(f"error: {error}\n")
        self.exit_codes[run.name] = exit_code

        is_killed = -exit_code in (signal.SIGINT, signal.SIGTERM)
        is_stopped = exit_code in STOPPED or is_killed
        if exit_code == 0:
            self._count(run.name)
            log.info("%s: finished%s", run.name, _result(run))
        elif is_stopping and is_stopped:
            log.info("%s: stopped at step %d", run.name, RunContents(run.run.path).step)
        else:
            error_line = _error(job.log_file, job.start_of_log, exit_code)
            self.outcome.failed[run.name] = error_line
            log.warning("%s: failed: %s", run.name, error_line)
            self.advance()
        self._write()

    def _count(self, name: str) -> None:
        """Count a run as finished."""
        self.outcome.finished.append(name)
        self.advance()

    def _write(self) -> None:
        """Write sweep.json."""
        runs = [self._record(run) for run in self.sweep.runs]
        plan = {
            "sweep": str(self.sweep.path),
            "config": str(self.sweep.config),
            "runs": runs,
        }
        write_json(self.sweep.folder / SWEEP, plan, indent=1)

    def _record(self, run: PlannedRun) -> dict[str, Any]:
        """Return the item of a run in sweep.json."""
        is_finished = run.name in self.outcome.finished
        exit_code = 0 if is_finished else self.exit_codes.get(run.name)
        return {
            "name": run.name,
            "values": run.values,
            "command": self.sweep.command_line(run),
            "exit_code": exit_code,
            "error": self.outcome.failed.get(run.name),
        }


def _train(job: _Job, num_threads: int) -> int:
    """Train a run, send it the signals in the stop file, and return the exit code."""
    if not job.log_file.parent.is_dir():
        raise DataError(
            f"{job.log_file.parent}: no such folder on this node; set run_dir of the sweep to a folder that all nodes "
            "share"
        )
    environment = dict(os.environ)
    if job.threads is not None:
        environment[THREADS] = str(job.threads)
    if job.cuda_device is not None:
        environment[DEVICES] = job.cuda_device

    with job.log_file.open("ab") as output:
        # The new session ensures that Ctrl-C in a terminal does not reach the process.
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )

    sent_signal = ""
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        wanted_signal = job.stop_file.read_text() if job.stop_file.exists() else sent_signal
        if wanted_signal != sent_signal:
            process.send_signal(int(wanted_signal))
            sent_signal = wanted_signal
    return process.returncode


def is_done(run: PlannedRun) -> bool:
    """Return True if the run finished with this config, and has its report and scores on all of its test sets."""
    try:
        if not run.run.config.is_file():
            return False
        if read_state(run.run).state != "finished":
            return False
        if config_diff(load_config(run.run.config).config, resolve_paths(run.config)):
            return False
    except ConfigError:  # the training process reports a damaged config
        return False

    test_set_names = _test_set_names(run.config.data)
    files = [run.run.evaluation(name) / SCORES for name in test_set_names]
    if run.config.training.report:
        files.append(run.run.report)
    # Scores of earlier training are older than the end of this one.
    end = run.run.state.stat().st_mtime
    return all(_is_newer(file, end) for file in files)


def _is_newer(file: Path, time_of_end: float) -> bool:
    return file.is_file() and file.stat().st_mtime >= time_of_end


def _test_set_names(data: DataConfig) -> Iterator[str]:
    """Yield the names of the test sets, and with `both_directions` those of the opposite direction (`NAME.de-en`)."""
    for name, source in data.test.items():
        yield name
        if data.both_directions:
            src_lang, tgt_lang = data.languages(source)
            yield f"{name}.{tgt_lang}-{src_lang}"


def _result(run: PlannedRun) -> str:
    """Return the best score and the training time of a run, if known."""
    row = summarize(run.run.path)
    result = ""
    if row.best is not None:
        result += f": {row.metric} {row.best:.2f} at step {row.best_step:,}"
    if row.seconds is not None:
        result += f", {row.seconds / 60:.1f} minutes of training"
    return result


def _error(log_file: Path, start: int, exit_code: int) -> str:
    """Return a one-line reason for the failure of a process; its log starts at this byte of the log file."""
    if exit_code < 0:
        killed_by = signal.Signals(-exit_code)
        remark = " (out of memory?)" if killed_by == signal.SIGKILL else ""
        return f"killed by {killed_by.name}{remark}"
    if exit_code in STOPPED:
        return "stopped by a signal after saving a checkpoint"

    with log_file.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors:
        return errors[0]
    return lines[-1] if lines else f"exit code {exit_code}"


def estimate(sweep: Sweep, num_threads: int, advance: Callable[[], object] = lambda: None) -> list["MemoryCheck"]:
    """Check the memory needed by each run; runs that differ only in their seed share a check.

    Args:
        sweep: the runs.
        num_threads: number of threads of each run.
        advance: function that is called after each run.

    Raise MtformerError, with the run's name, on an error that training would meet.
    """
    from mtformer.device import use_threads
    from mtformer.experiment.preflight import try_config

    checks: list[MemoryCheck] = []
    check_of_config: dict[str, MemoryCheck] = {}
    with use_threads(num_threads):
        for run in sweep.runs:
            config_without_seed = dump_config(run.config.with_values({"training.seed": 0}))
            if config_without_seed not in check_of_config:
                try:
                    check_of_config[config_without_seed] = try_config(run.config, run.run).checked
                except MtformerError as error:
                    raise type(error)(f"run {run.name}: {error}") from error
            checks.append(check_of_config[config_without_seed])
            advance()
    return checks


def finishing_time(seconds: Sequence[float], jobs: int) -> float:
    """Return the total time of runs with these durations, started in this order, `jobs` at a time."""
    ends = [0.0] * jobs
    for duration in seconds:
        first_free = ends.index(min(ends))
        ends[first_free] += duration
    return max(ends)
