"""Report on one or more runs: a single HTML file that can be opened from disk."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
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
BUNDLE = "bundle: weights without a training history"
MAX_TESTS = 3
T = TypeVar("T")
Section = tuple[str, str, Any]
"""ID, title, and content of a section: template values, or a run's sections if there are several runs."""


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Write an HTML report on runs, which may be new, running or killed; raise MtformerError if a path is not a run."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; give the name of an HTML file")
    folders = [RunDir.open(path, verified=False).path for path in paths]
    runs = [RunContents(path, name) for path, name in zip(folders, run_names(folders), strict=True)]
    systems = []  # as `compare` groups them: runs that differ only in their seeds are one system
    for one in group_runs([Run(run.name, run.run.path, run.config) for run in runs]):
        name = f"{one.name} (mean of {len(one.runs)} seeds)" if one.runs[1:] else one.name
        systems.append((name, [run for each in one.runs for run in runs if run.name == each.name]))
    each = [_sections(run, number, attention.MAX_WEIGHTS // len(runs)) for number, run in enumerate(runs, start=1)]
    sections: list[Section] = [
        ("curves", "Curves", charts(systems)),
        ("differences", "Settings that differ", tables.config_differences(runs)),
        ("scores", "Test scores", tables.scores(systems)),
    ]
    of_runs = [(f"run-{n}", f"Run {run.name}", each[n - 1]) for n, run in enumerate(runs, start=1)]
    sections += each[0] if len(runs) == 1 else of_runs
    tests = list(dict.fromkeys(name for run in runs for name in run.scores))[:MAX_TESTS]
    html = render(
        "report.html",
        title=f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs",
        tests=tests,
        overviews=[_overview(run, tests) for run in runs],
        unread=[f" of {run.name}: {line}" if len(runs) > 1 else f": {line}" for run in runs for line in run.unread],
        sections=[section for section in sections if section[2]],
        written=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M UTC} by mtformer {__version__}",
    )
    write_text(out, html)


def _overview(run: RunContents, tests: Sequence[str]) -> dict[str, Any]:
    state, seconds, is_bundle = run.state, run.training_seconds, run.run.is_bundle
    summary = BUNDLE if state.state == "new" and is_bundle else STATES.get(state.state, state.state)
    of = f" of {run.max_steps:,}" if run.max_steps is not None else ""
    weights = None
    if run.config is not None and not is_bundle:
        metric = run.config.training.best_metric
        weights = _try(run, "weights", lambda: default_weights(run.run, metric))
    return {
        "name": run.name,
        "state": state,
        "summary": summary,
        "reached": f": step {run.step:,}{of}" if run.step or state.state != "new" else "",
        "is_empty": not run.points("train", "loss") and not is_bundle,
        "best": run.best("bleu"),
        "bleu": [tables.format_scores([run.scores[test]] if test in run.scores else [], "BLEU") for test in tests],
        "time": format_duration(seconds) if seconds else None,
        "weights": weights.text if weights is not None else None,
    }


def _sections(run: RunContents, number: int, max_weights: int) -> list[Section]:
    """Return the non-empty sections of one run; add lines about unreadable parts to `run.unread`."""
    unspaced, sentences = compares_characters(run), judge(run)
    maps = _try(run, "attention", lambda: attention.page_maps(run, sentences, max_weights))
    found: list[Section] = [
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
    return [section for section in found if section[2]]


def _try(run: RunContents, name: str, make: Callable[[], T]) -> T | None:
    """Call `make`; if files are missing or damaged, return None and add a line to `run.unread`."""
    try:
        return make()
    except (MtformerError, OSError) as error:
        run.unread.append(f"{name}: {error}")
        return None
