"""Report on one or more runs: a single HTML file that can be opened from disk."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
"""Description of the state of a bundle."""
MAX_TESTS = 3
"""Maximum number of test sets in the overview."""
T = TypeVar("T")


class Section(NamedTuple):
    """A section of the page."""

    id: str
    title: str
    content: Any
    """Values for the template, or all sections of a run if the page is about several runs."""


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Write an HTML report on runs, which may be new, running or killed; raise MtformerError if a path is not a run."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; give the name of an HTML file")
    folders = [RunDir.open(path, verified=False).path for path in paths]
    names = run_names(folders)
    runs = [RunContents(folder, name) for folder, name in zip(folders, names, strict=True)]
    is_single = len(runs) == 1

    sections = _common_sections(runs)
    max_weights = attention.MAX_WEIGHTS // len(runs)
    for number, run in enumerate(runs, start=1):
        run_sections = _sections(run, number, max_weights)
        if is_single:
            sections += run_sections
        else:
            sections.append(Section(f"run-{number}", f"Run {run.name}", run_sections))

    all_tests = dict.fromkeys(chain.from_iterable(run.scores for run in runs))
    shown_tests = list(all_tests)[:MAX_TESTS]
    overviews = [_overview(run, shown_tests) for run in runs]

    # This comes last, because the functions above add messages to `run.unread`.
    unread_parts = []
    for run in runs:
        run_label = "" if is_single else f" of {run.name}"
        unread_parts += [f"{run_label}: {message}" for message in run.unread]

    title = f"Run {runs[0].name}" if is_single else f"{len(runs)} runs"
    time = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M UTC}"
    html = render(
        "report.html",
        title=title,
        tests=shown_tests,
        overviews=overviews,
        unread=unread_parts,
        sections=_non_empty(sections),
        written=f"{time} by mtformer {__version__}",
    )
    write_text(out, html)


def _non_empty(sections: Iterable[Section]) -> list[Section]:
    """Return the sections that have content."""
    return [section for section in sections if section.content]


def _common_sections(runs: Sequence[RunContents]) -> list[Section]:
    """Return the sections about all runs together."""
    systems = _systems(runs)
    return [
        Section("curves", "Curves", charts(systems)),
        Section("differences", "Settings that differ", tables.config_differences(runs)),
        Section("scores", "Test scores", tables.scores(systems)),
    ]


def _systems(runs: Sequence[RunContents]) -> list[tables.ReportedSystem]:
    """Group the runs as `compare` does: runs that differ only in their seeds are one system."""
    contents_of = {contents.name: contents for contents in runs}
    compared_runs = [Run(contents.name, contents.run.path, contents.config) for contents in runs]

    systems = []
    for group in group_runs(compared_runs):
        label = group.name
        num_seeds = len(group.runs)
        if num_seeds > 1:
            label += f" (mean of {num_seeds} seeds)"
        contents_of_group = [contents_of[run.name] for run in group.runs]
        systems.append(tables.ReportedSystem(label, contents_of_group))
    return systems


def _overview(run: RunContents, tests: Sequence[str]) -> dict[str, Any]:
    """Return the card of a run at the top of the page."""
    has_losses = bool(run.points("train", "loss"))
    seconds = run.training_seconds
    return {
        "name": run.name,
        "state": run.state,
        "summary": _describe_state(run),
        "reached": _describe_progress(run),
        "is_empty": not has_losses and not run.run.is_bundle,
        "best": run.best("bleu"),
        "bleu": [_bleu(run, test) for test in tests],
        "time": format_duration(seconds) if seconds else None,
        "weights": _weights_text(run),
    }


def _describe_state(run: RunContents) -> str:
    """Return the state of a run in words."""
    state = run.state.state
    if state == "new" and run.run.is_bundle:
        return BUNDLE
    return STATES.get(state, state)


def _describe_progress(run: RunContents) -> str:
    """Return the step of a run, to be appended to its state; empty for a run that has not started."""
    if run.step == 0 and run.state.state == "new":
        return ""
    max_steps = f" of {run.max_steps:,}" if run.max_steps is not None else ""
    return f": step {run.step:,}{max_steps}"


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
    sentences = judge(run)
    references = [sentence.reference for sentence in chain.from_iterable(sentences.values())]
    unspaced = compares_characters(run, references)
    maps = _try(run, "attention", lambda: attention.page_maps(run, sentences, max_weights))
    heat_maps = {"id": f"weights-{number}", "sentences": maps} if maps else None
    dev_translations = over_time(run.samples, unspaced)
    sections = [
        Section("samples", "Dev translations over time", dev_translations),
        Section("sentences", "Best and worst test sentences", best_and_worst(sentences, unspaced)),
        Section("attention", "Attention", heat_maps),
        Section("starts", "Starts and resumes" if tables.resumes(run) else "Start", tables.starts(run)),
        Section("speed", "Speed and time", tables.speed(run)),
        Section("data", "Data", tables.data(run)),
        Section("parameters", "Parameters", _try(run, "parameters", lambda: tables.parameters(run))),
        Section("config", "Config", tables.config(run)),
    ]

    has_losses = bool(run.points("train", "loss"))
    if has_losses and not run.samples:
        run.unread.append(f"translations of dev: there is no {run.run.samples.name}, so the run may have no dev data")
    return _non_empty(sections)


def _try(run: RunContents, name: str, make: Callable[[], T]) -> T | None:
    """Call `make`; if files are missing or damaged, return None and add a line to `run.unread`."""
    try:
        return make()
    except (MtformerError, OSError) as error:
        run.unread.append(f"{name}: {error}")
        return None
