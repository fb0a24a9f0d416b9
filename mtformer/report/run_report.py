"""Report on one or more runs: a single HTML file that can be opened from disk."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from mtformer.decoding.weights import default_weights
from mtformer.errors import ConfigError, MtformerError
from mtformer.evaluation.systems import Run, group_runs
from mtformer.experiment.runs import RunContents
from mtformer.files import write_text
from mtformer.formatting import format_duration
from mtformer.report import attention, tables
from mtformer.report.curves import charts
from mtformer.report.sentences import best_and_worst, compares_characters, judge, over_time
from mtformer.run_dir import RunDir, run_names
from mtformer.templating import render
from mtformer.version import __version__

STATES = {
    "new": "not started",
    "interrupted": "stopped by a signal (can be resumed)",
    "killed": "killed (can be resumed)",
}
"""Descriptions of some states of a run."""
BUNDLE = "bundle: weights without a training history"
MAX_TESTS = 3
"""Maximum number of test sets in the overview."""
T = TypeVar("T")
Section = tuple[str, str, Any]
"""ID, title, and content of a section: template values, or a run's sections if there are several runs."""


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Write an HTML report on runs, which may be new, running or killed; raise MtformerError if a path is not a run."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; give the name of an HTML file")
    folders = [RunDir.open(path, verified=False).path for path in paths]
    runs = [RunContents(path, name) for path, name in zip(folders, run_names(folders), strict=True)]
    is_single = len(runs) == 1
    sections = _common_sections(runs)
    for number, run in enumerate(runs, start=1):
        run_sections = _sections(run, number, attention.MAX_WEIGHTS // len(runs))
        if is_single:
            sections += run_sections
        else:
            sections.append((f"run-{number}", f"Run {run.name}", run_sections))

    tests = list(dict.fromkeys(chain.from_iterable(run.scores for run in runs)))[:MAX_TESTS]
    overviews = [_overview(run, tests) for run in runs]
    unread_parts = []
    for run in runs:
        run_label = "" if is_single else f" of {run.name}"
        unread_parts += [f"{run_label}: {message}" for message in run.unread]

    html = render(
        "report.html",
        title=f"Run {runs[0].name}" if is_single else f"{len(runs)} runs",
        tests=tests,
        overviews=overviews,
        unread=unread_parts,
        sections=[section for section in sections if section[2]],
        written=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M UTC} by mtformer {__version__}",
    )
    write_text(out, html)


def _common_sections(runs: Sequence[RunContents]) -> list[Section]:
    """Return the sections about all runs together."""
    systems = _systems(runs)
    return [
        ("curves", "Curves", charts(systems)),
        ("differences", "Settings that differ", tables.config_differences(runs)),
        ("scores", "Test scores", tables.scores(systems)),
    ]


def _systems(runs: Sequence[RunContents]) -> tables.Systems:
    """Group the runs as `compare` does: runs that differ only in their seeds are one system."""
    contents_of = {run.name: run for run in runs}
    systems = []
    for system in group_runs([Run(run.name, run.run.path, run.config) for run in runs]):
        num_seeds = len(system.runs)
        label = f"{system.name} (mean of {num_seeds} seeds)" if num_seeds > 1 else system.name
        systems.append((label, [contents_of[run.name] for run in system.runs]))
    return systems


def _overview(run: RunContents, tests: Sequence[str]) -> dict[str, Any]:
    """Return the card of a run at the top of the page."""
    state = run.state.state
    is_bundle = run.run.is_bundle
    has_started = run.step > 0 or state != "new"
    max_steps = f" of {run.max_steps:,}" if run.max_steps is not None else ""
    seconds = run.training_seconds
    return {
        "name": run.name,
        "state": run.state,
        "summary": BUNDLE if state == "new" and is_bundle else STATES.get(state, state),
        "reached": f": step {run.step:,}{max_steps}" if has_started else "",
        "is_empty": not run.points("train", "loss") and not is_bundle,
        "best": run.best("bleu"),
        "bleu": [_bleu(run, test) for test in tests],
        "time": format_duration(seconds) if seconds else None,
        "weights": _weights_text(run),
    }


def _bleu(run: RunContents, test: str) -> str:
    """Return the BLEU of a run on a test set, if it has a score."""
    cards = [run.scores[test]] if test in run.scores else []
    return tables.format_scores(cards, "BLEU")


def _weights_text(run: RunContents) -> str | None:
    """Return which weights commands use by default; None if this is unknown."""
    if run.config is None or run.run.is_bundle:
        return None
    metric = run.config.training.best_metric
    weights = _try(run, "weights", lambda: default_weights(run.run, metric))
    return weights.text if weights is not None else None


def _sections(run: RunContents, number: int, max_weights: int) -> list[Section]:
    """Return the non-empty sections of one run; add lines about unreadable parts to `run.unread`."""
    unspaced = compares_characters(run)
    sentences = judge(run)
    maps = _try(run, "attention", lambda: attention.page_maps(run, sentences, max_weights))
    sections: list[Section] = [
        ("samples", "Dev translations over time", over_time(run.samples, unspaced)),
        ("sentences", "Best and worst test sentences", best_and_worst(sentences, unspaced)),
        ("attention", "Attention", {"id": f"weights-{number}", "sentences": maps} if maps else None),
        ("starts", "Starts and resumes", tables.starts(run)),
        ("speed", "Speed and time", tables.speed(run)),
        ("data", "Data", tables.data(run)),
        ("parameters", "Parameters", _try(run, "parameters", lambda: tables.parameters(run))),
        ("config", "Config", tables.config(run)),
    ]
    if run.points("train", "loss") and not run.samples:
        run.unread.append(f"translations of dev: there is no {run.run.samples.name}, so the run may have no dev data")
    return [section for section in sections if section[2]]


def _try(run: RunContents, name: str, make: Callable[[], T]) -> T | None:
    """Call `make`; if files are missing or damaged, return None and add a line to `run.unread`."""
    try:
        return make()
    except (MtformerError, OSError) as error:
        run.unread.append(f"{name}: {error}")
        return None
