"""`mtformer train`, and the training in other commands."""

import logging
import os
import re
import shlex
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli import options
from mtformer.cli.help import Command
from mtformer.cli.options import optional, require_at_most_one
from mtformer.cli.output import clean_up_on_sigterm, echo, error_lines, log_to_file, table_lines
from mtformer.cluster.slurm import set_ranks
from mtformer.errors import ConfigError, InterruptedRunError, log
from mtformer.files import LEFTOVER
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.config.schema import Config
    from mtformer.experiment.open_run import Resume
    from mtformer.experiment.train import Outcome

SIGNAL_BASE = 128
"""Exit code of a process that a signal stopped, minus the number of the signal."""
NAME_WIDTH = 28
"""Width of the names in the output of --dry-run."""


class TrainCommand(Command):
    """Command that accepts `--resume` with the optional value `auto`; any other word after it is an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after joining `--resume` and its value."""
        return super().parse_args(ctx, join_resume(args))


def join_resume(words: list[str]) -> list[str]:
    """Replace `--resume auto` with `--resume=auto`, and `--resume` alone with `--resume=newest`."""
    joined: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            return [*joined, word, *remaining]
        if word == "--resume":
            word = _resume_with_value(remaining)
        elif word.startswith("--resume=") and word != "--resume=auto":
            raise ConfigError(f"{word}: the only value of --resume is auto; write --resume or --resume auto")
        joined.append(word)
    return joined


def _resume_with_value(following: list[str]) -> str:
    """Return `--resume` with its value, which is removed from the words that follow the option."""
    next_word = following[0] if following else ""
    if next_word == "auto":
        del following[0]
        return "--resume=auto"
    if re.fullmatch(r"\w+", next_word) and not os.path.exists(next_word):
        raise ConfigError(f"--resume {next_word}: the only value of --resume is auto; write --resume or --resume auto")
    return "--resume=newest"


def train(
    config: options.ConfigArgument,
    overrides: options.OverridesArgument = None,
    run_dir: Annotated[
        Path | None, optional("Run directory (default: runs/NAME for NAME.yaml).", metavar="FOLDER")
    ] = None,
    resume: Annotated[
        str | None,
        optional("Resume from the latest checkpoint (auto: start a new run if none exists).", metavar="[auto]"),
    ] = None,
    overwrite: Annotated[bool, optional("Replace the existing run in the run directory.", "--overwrite")] = False,
    dry_run: Annotated[bool, optional("Check config, data and memory without training.", "--dry-run")] = False,
    verify_resume: Annotated[
        bool, optional("Test on a few steps that a resumed run exactly equals an uninterrupted one.", "--verify-resume")
    ] = False,
) -> None:
    """Save a checkpoint on SIGTERM or Ctrl-C, and exit with 143 or 130; --resume auto starts or resumes a run."""
    from mtformer.config.loading import load_config

    set_ranks()
    modes = {"--resume": resume, "--overwrite": overwrite, "--verify-resume": verify_resume, "--dry-run": dry_run}
    require_at_most_one(modes)
    if _is_config_of_a_run(config):
        RunDir.open(config.parent)  # compares it with its checksum
    loaded = load_config(config, overrides or [])
    run_dir = run_dir or Path("runs") / config.stem

    if dry_run:
        _dry_run(loaded.config, RunDir(run_dir))
        return
    if verify_resume:
        _verify_resume(loaded.config)
        return

    from mtformer.experiment.resume import with_saved_defaults

    is_resume: Resume = "auto" if resume == "auto" else resume is not None
    settings = with_saved_defaults(loaded, RunDir(run_dir)) if is_resume else loaded.config
    command = ["mtformer", "train", str(config), *(overrides or []), "--run-dir", str(run_dir), "--resume"]
    if resume == "auto":
        command.append("auto")
    outcome = run_training(settings, run_dir, command, is_resume, overwrite)
    if outcome is not None:
        _finish(settings, run_dir)


def _is_config_of_a_run(path: Path) -> bool:
    run = RunDir(path.parent)
    is_run = run.checksums.exists() or run.checkpoints.exists()  # version 0.1 wrote no checksums
    return is_run and path.name == run.config.name


def run_training(
    config: "Config", run_dir: Path, command: list[str], resume: "Resume", overwrite: bool = False
) -> "Outcome | None":
    """Train with a progress bar and a log file.

    Args:
        config: the config.
        run_dir: the run directory.
        command: command that resumes the run; it is printed if a signal stops the training, and the program exits.
        resume: resume the run; `auto`: if there is one.
        overwrite: replace an existing run.

    Returns:
        The outcome; None in processes other than the first one of `torchrun`.
    """
    from mtformer.cli.progress import TrainingProgress
    from mtformer.experiment.train import train_experiment

    run = RunDir(run_dir)
    is_main = os.environ.get("RANK", "0") == "0"
    log_file: AbstractContextManager[None] = nullcontext()
    if is_main:
        log_file = log_to_file(run.log)
    else:
        log.setLevel(logging.ERROR)

    try:
        with log_file, TrainingProgress() as progress:
            outcome = train_experiment(config, run, progress, resume, overwrite)
    except InterruptedRunError as stopped:
        if is_main:
            _echo_resume_command(stopped.step, command)
        raise typer.Exit(SIGNAL_BASE + stopped.signal_number) from None
    if not is_main:
        return None

    position = outcome.position
    state = "already" if outcome.was_finished else "done"
    minutes = position.seconds / 60
    steps = f"{position.step} of {outcome.max_steps}"
    echo(f"{state} at step {steps} ({minutes:.1f} minutes): {run_dir}", err=True)
    return outcome


def _echo_resume_command(step: int, command: list[str]) -> None:
    has_processes = os.environ.get("WORLD_SIZE", "1") != "1"
    how = "in several processes, as before, " if has_processes else ""
    echo(f"stopped at step {step}, checkpoint saved; resume {how}with: {shlex.join(command)}", err=True)


def require_new_folder(run: RunDir, foreign_record: Path) -> None:
    """Raise ConfigError if the run directory of `adapt` or `distill` has something other than an interrupted run of it.

    Args:
        run: the run.
        foreign_record: file that only the other one of the two commands writes to a run.
    """
    if run.corpus.is_dir():
        is_usable = not foreign_record.exists()
    elif run.path.is_dir():
        is_usable = all(map(LEFTOVER.fullmatch, os.listdir(run.path)))
    else:
        is_usable = not run.path.exists()
    if not is_usable:
        raise ConfigError(f"{run.path}: already exists; choose another folder for --run-dir")


def require_one_process(command: str) -> None:
    """Raise ConfigError if `torchrun` started several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"{command} uses one process; run it without torchrun")


def _dry_run(config: "Config", run: RunDir) -> None:
    from mtformer.cli.progress import ELAPSED, alive
    from mtformer.experiment import preflight

    with alive("check", bar_format=ELAPSED):
        rows = preflight.dry_run(config, run)
    for name, value in rows:
        echo(f"{name:<{NAME_WIDTH}} {value}")


def _finish(config: "Config", run_dir: Path) -> None:
    """Fit the confidence of a finished run, score its test sets, write its report, and print the next steps."""
    from mtformer.cli.eval import echo_scores
    from mtformer.cli.next_steps import echo_next_steps, steps_after_training
    from mtformer.cli.progress import line_progress
    from mtformer.cli.runs import report
    from mtformer.experiment.finish import finish_training

    cards = finish_training(run_dir, config, line_progress)
    if cards:
        echo_scores(cards)
    if config.training.report:
        report([run_dir])

    echo(f"run directory: {run_dir}", err=True)
    echo_next_steps(steps_after_training(run_dir, has_report=config.training.report))


def _verify_resume(config: "Config") -> None:
    from mtformer.experiment.verify import verify_resume

    clean_up_on_sigterm()
    rows = [("compared", "tensors", "numbers", "equal")]
    different = []
    for part, num_tensors, num_numbers, difference in verify_resume(config):
        rows.append((part, f"{num_tensors:,}", f"{num_numbers:,}", "no" if difference else "yes"))
        if difference:
            different.append(f"{part}: {difference.name}")
    echo(*table_lines(rows))
    if different:
        error_lines(f"the resumed run differs from the uninterrupted one; first difference: {different[0]}")
        raise typer.Exit(1)
