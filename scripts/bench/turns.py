"""Benchmarked systems in separate processes, which take turns, and the reporting of their rates.

Allocator settings and threads are per process, so each system runs in a worker process, and only one works at a time.
In each round every system gets a short slice, in rotating order, so that changes in machine speed affect all systems.
The reported numbers are medians over the rounds.
"""

import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import torch

import mtformer
from mtformer.device import pick_precision
from mtformer.evaluation.card import describe_hardware

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Settings that mtformer uses: glibc keeps large freed blocks, which avoids page faults."""


# ---- workers --------------------------------------------------------------------------------------------------------


class Worker:
    """A system in a separate process, which works only while it answers a question."""

    def __init__(
        self,
        build: Callable[..., Callable[..., Any]],
        *arguments: object,
        threads: int | None = None,
        allocator: bool = False,
        starts_processes: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Start the process, and wait until it has built the system.

        Args:
            build: top-level function of a module; it returns the function that answers `ask`.
            *arguments: arguments of `build`.
            threads: number of PyTorch threads in the process (default: chosen by PyTorch).
            allocator: start the process with the settings of `ALLOCATOR`; otherwise without allocator settings.
            starts_processes: True if the system may start processes; then `close` must be called, because otherwise
                this program waits for the process before it exits.
            timeout: time in seconds after which the process is killed if `build` has not returned.

        Raises:
            RuntimeError: if `build` fails or times out, or the process ends; `ask` raises it for the same reasons.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        settings = (theirs, threads, build, arguments)
        self._process = context.Process(target=_serve, args=settings, daemon=not starts_processes)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        # glibc reads its settings when the process starts.
        with mock.patch.dict(os.environ, environment | (ALLOCATOR if allocator else {}), clear=True):
            self._process.start()
        theirs.close()
        self._answer(timeout)

    def ask(self, *arguments: object, timeout: float | None = None) -> Any:
        """Return the system's answer for these arguments; kill its process after `timeout` seconds."""
        self._connection.send(arguments)
        return self._answer(timeout)

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(10)
        self._process.kill()

    def _answer(self, timeout: float | None) -> Any:
        if not self._connection.poll(timeout):
            self._process.kill()
            raise RuntimeError(f"no answer after {timeout:.0f} seconds")
        try:
            answer, error = self._connection.recv()
        except EOFError:  # killed, for example for lack of memory
            self._process.join()
            answer, error = None, f"its process ended with exit code {self._process.exitcode}"
        if error is not None:
            raise RuntimeError(error)
        return answer


def _serve(
    connection: Any, threads: int | None, build: Callable[..., Callable[..., Any]], arguments: Sequence[Any]
) -> None:
    """Send (answer, None) for each question, or (None, error) as the last message."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(1)
    try:
        system = build(*arguments)
        connection.send((None, None))
        while True:
            try:
                question = connection.recv()
            except EOFError:
                return
            connection.send((system(*question), None))
    except Exception as error:
        traceback.print_exc()
        connection.send((None, one_line(error)))


def one_line(error: Exception) -> str:
    """Return the type of an error and the last line of its message, which names the cause in a failed subprocess."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[-1]}"


def take_turns(
    systems: Mapping[str, Callable[[], Worker]], questions: Sequence[tuple[object, ...]]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Start each system, then ask each of them one question per round, in rotating order.

    A system that fails is not asked again; the others continue.

    Returns:
        The answers of each system (fewer than the questions if it failed), and the errors of failed systems.
    """
    workers: dict[str, Worker] = {}
    answers: dict[str, list[Any]] = {name: [] for name in systems}
    failed: dict[str, str] = {}
    for name, start in systems.items():
        try:
            workers[name] = start()
        except (OSError, RuntimeError) as error:
            failed[name] = str(error)
    names = list(workers)
    for number, question in enumerate(questions):
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            if name in failed:
                continue
            try:
                answers[name].append(workers[name].ask(*question))
            except (OSError, RuntimeError) as error:
                failed[name] = str(error)
    for worker in workers.values():
        worker.close()
    return answers, failed


# ---- the report -----------------------------------------------------------------------------------------------------


def ratios_to_fastest(rates: Mapping[str, Sequence[float]], peers: Sequence[str]) -> dict[str, list[float]]:
    """Return the speed of each of our systems relative to the fastest of these peers, per round."""
    fastest = [max(of_round) for of_round in zip(*(rates[name] for name in peers if name in rates), strict=True)]
    return {
        name: [ours / theirs for ours, theirs in zip(rates[name], fastest, strict=True)]
        for name in rates
        if fastest and name.startswith("mtformer")
    }


def format_range(values: Sequence[float], digits: int = 0) -> str:
    """Format the median, followed by the lowest and highest value in parentheses."""
    median, lowest, highest = (f"{x:,.{digits}f}" for x in (statistics.median(values), min(values), max(values)))
    return f"{median} ({lowest} to {highest})"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; columns after the first are right-aligned."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def without_bf16(systems: Sequence[str]) -> list[str]:
    """Return the systems whose precision is fast on this processor; print a line about the others."""
    if pick_precision("auto", torch.device("cpu")) == "bf16":
        return list(systems)
    left_out = [name for name in systems if "bf16" in name]
    if left_out:
        print(f"- skipped, because this processor has no fast bf16: {', '.join(left_out)}")
    return [name for name in systems if name not in left_out]


def exit_on_failures(failed: Mapping[str, str]) -> None:
    """If any system failed, exit with code 1 and an error message for each."""
    if failed:
        raise SystemExit("\n".join(f"error: {name} failed: {error}" for name, error in failed.items()))


def describe_environment(threads: int, device: str = "cpu") -> dict[str, str]:
    """Return date, machine, number of threads and versions."""
    versions = {"Python": platform.python_version(), "mtformer": mtformer.__version__, "torch": torch.__version__}
    for name in ("transformers", "eole", "ctranslate2", "triton"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    memory, hardware = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, describe_hardware(device)
    environment = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{hardware['cpu']}, {os.cpu_count()} logical cores, {memory:.0f} GiB, {platform.system()}",
        "threads": str(threads),
    }
    if device == "cuda":
        versions |= {"CUDA": str(torch.version.cuda), "cuDNN": str(torch.backends.cudnn.version())}
        query = "nvidia-smi --query-gpu=driver_version,memory.total --format=csv,noheader"
        environment |= {"device": str(hardware["gpu"]), "driver and memory": subprocess.getoutput(query)}
    return {**environment, "versions": ", ".join(f"{name} {version}" for name, version in versions.items())}
