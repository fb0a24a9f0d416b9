"""Commands that are useful after a training, printed with the paths of its runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from mtformer.cli.output import echo
from mtformer.experiment.runs import sort_runs, summarize
from mtformer.run_dir import SCORES, RunDir

MAX_NAMED = 4
"""Number of runs that a command names; more are given as a pattern."""
Step = tuple[str, str]
"""A command, and what it is for."""


def echo_next_steps(steps: Sequence[Step]) -> None:
    """Print commands to stderr, each with what it is for as a comment of the shell."""
    width = max(len(command) for command, _ in steps)
    echo("next steps:", err=True)
    for command, purpose in steps:
        echo(f"  {command:<{width}}  # {purpose}", err=True)


def steps_after_training(run_dir: Path, has_report: bool = False) -> list[Step]:
    """Return the commands for a trained run; `compare` names another run of the same folder with common test sets."""
    run = shlex.quote(str(run_dir))
    steps = [(f"mtformer translate {run}", "translate lines that you type")]
    if not has_report:
        steps.append((f"mtformer report {run}", "write a page with curves and sentences"))

    steps += [
        (f"mtformer eval {run}{_missing_files(run_dir)}", "score test sets, with other search settings or weights"),
        (f"mtformer exam {run}", "test capitals, URLs, typos, long lines"),
    ]
    other = _comparable_run(run_dir)
    if other is not None:
        steps.append((f"mtformer compare {shlex.quote(str(other))} {run}", "is the difference significant?"))
    steps += [
        (f"mtformer export {run}", "a bundle for use elsewhere; see --format"),
        (f"mtformer runs {shlex.quote(str(run_dir.parent))}", "list all runs"),
    ]
    return steps


def steps_after_sweep(folder: Path, runs: Sequence[Path]) -> list[Step]:
    """Return the commands for the finished runs of a sweep, with the best one by dev score."""
    rows = sort_runs([summarize(run) for run in runs], "best", [])
    best_run = shlex.quote(str(rows[0].path))
    all_runs = " ".join(shlex.quote(str(run)) for run in runs)
    if len(runs) > MAX_NAMED:
        all_runs = f"{shlex.quote(str(folder))}/*/"

    report = shlex.quote(str(folder / "report.html"))
    steps = [(f"mtformer runs {shlex.quote(str(folder))} --sort best", "list all runs, the best on dev first")]
    if len(runs) > 1:
        if all(map(_scored_sets, runs)):
            steps.append((f"mtformer compare {all_runs}", "are the differences significant?"))
        steps.append((f"mtformer report {all_runs} --out {report}", "write a page with all curves"))
    steps += [
        (f"mtformer eval {best_run}{_missing_files(rows[0].path)}", "score test sets with the best run on dev"),
        (f"mtformer exam {best_run}", "test capitals, URLs, typos, long lines"),
    ]
    return steps


def _scored_sets(run_dir: Path) -> set[str]:
    """Return the names of the test sets on which a run has scores."""
    return {card.parent.name for card in RunDir(run_dir).evaluations.glob(f"*/{SCORES}")}


def _missing_files(run_dir: Path) -> str:
    """Return the options of `eval` for a run whose config names no test set."""
    return "" if _scored_sets(run_dir) else " --src FILE --ref FILE"


def _comparable_run(run_dir: Path) -> Path | None:
    """Return the run in the same folder with scores on a common test set that was evaluated last, or None."""
    test_sets = _scored_sets(run_dir)
    cards: list[Path] = []
    for test_set in test_sets:
        cards += run_dir.parent.glob(f"*/{RunDir(run_dir).evaluations.name}/{test_set}/{SCORES}")
    others = [card for card in cards if card.parents[2].name != run_dir.name]
    latest = max(others, key=lambda card: card.stat().st_mtime, default=None)
    return None if latest is None else latest.parents[2]
