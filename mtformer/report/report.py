"""The report of a run, or of several: one HTML file that works from disk."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from mtformer import __version__
from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import default_weights
from mtformer.errors import ConfigError, MtformerError
from mtformer.experiment.runs import RunContents, read_run, run_names
from mtformer.page import page, require_matplotlib, table
from mtformer.report import heatmaps, sections
from mtformer.report.curves import curves_html
from mtformer.report.parameters import parameters
from mtformer.report.sentences import best_and_worst, by_characters, judged, over_time
from mtformer.rundir import write_text
from mtformer.text.tokenizer import TokenizerPair

STATES = {
    "new": "has not begun to train",
    "running": "trains now",
    "finished": "is finished",
    "interrupted": "was stopped by a signal, and can go on",
    "failed": "failed",
    "killed": "was killed, or its machine went down; it can go on",
}
STYLE = (
    """
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: 1rem 0; }
.state { font-weight: 600; } .state.finished { color: var(--good); } .state.failed, .state.killed { color: var(--bad); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin: .5rem 0; padding: 0; }
.legend li { display: flex; align-items: center; gap: .5rem; min-width: 0; }
.key { flex: none; width: 2.6rem; } .key svg { display: block; width: 100%; height: auto; overflow: visible; }
mark { color: var(--ink); border-radius: 2px; padding: 0 .12em; } mark.extra { background: var(--added); }
mark.missing { background: var(--missing); text-decoration: underline dotted; text-underline-offset: .2em; }
.sentence { display: flow-root; border-bottom: 1px solid var(--line); padding: .6rem 0; }
.sentence .score { float: right; margin-left: 1rem; color: var(--faint); font-variant-numeric: tabular-nums; }
.sentence .wide { margin-top: .5rem; font-size: .95rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem .9rem; margin: 0; }
dt { color: var(--faint); font-size: .85rem; line-height: 1.75; } dd { margin: 0; }
pre { background: var(--soft); padding: .75rem 1rem; overflow-x: auto; font-size: .875rem; border-radius: 4px; }
.sentence th { white-space: nowrap; font-variant-numeric: tabular-nums; color: var(--faint); }
@media (max-width: 34rem) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .35rem; } }
"""
    + heatmaps.STYLE
)
Part = tuple[str, str, str]
"""Id, title, HTML."""


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Writes the report of these runs.

    Args:
        paths: run directories, also of runs that have just begun or were killed, and of older versions.
        out: the HTML file.

    Raises:
        MtformerError: when a path is no run, or `out` a folder, and without matplotlib.
    """
    require_matplotlib("a report")
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; give the HTML file a name")
    runs = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    write_text(out, make_report(runs))


def make_report(runs: Sequence[RunContents]) -> str:
    """The HTML text of a report; it may add to what is told as unread."""
    each = [_parts(run, number, heatmaps.MOST_WEIGHTS // len(runs)) for number, run in enumerate(runs, start=1)]
    shared = [
        ("curves", "Curves", curves_html(runs)),
        ("differences", "Differences of the configs", sections.config_differences(runs)),
        ("scores", "Test scores", sections.scores(runs)),
    ]
    if len(runs) == 1:
        title, parts = f"Run {runs[0].name}", [*shared, *each[0]]
    else:
        title = f"{len(runs)} runs"
        folded = ["\n".join(_folded(part) for part in of_run if part[2]) for of_run in each]
        parts = [*shared, *((f"run-{n}", f"Run {runs[n - 1].name}", text) for n, text in enumerate(folded, start=1))]
    parts = [part for part in parts if part[2]]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in parts)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    body = [
        f"<header><h1>{escape(title)}</h1>",
        _overview(runs),
        _unread(runs),
        f"<nav>{links}</nav></header>",
        *(f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{text}\n</section>' for name, title, text in parts),
        f'<footer><p class="faint">Written {now} by mtformer {__version__}</p></footer>',
    ]
    return page(title, "\n".join(body), style=STYLE, script=heatmaps.SCRIPT)


def _folded(part: Part) -> str:
    return f"<details><summary>{escape(part[1])}</summary>\n{part[2]}\n</details>"


def _state(run: RunContents) -> str:
    """How the run is, as what one says after its name."""
    state = run.state
    of = f" of {run.max_steps:,}" if run.max_steps is not None else ""
    what = STATES[state.state]
    if state.state == "new" and run.run.is_bundle:
        what = "is a bundle: it has weights, and not the history of their training"
    reached = f": step {run.step:,}{of}" if run.step or state.state != "new" else ""
    error = f'. <span class="bad">{escape(state.error)}</span>' if state.error else ""
    nothing = "" if run.records or run.run.is_bundle else '. <span class="faint">Nothing is logged yet</span>'
    return f'<span class="state {state.state}">{what}</span>{reached}{error}{nothing}'


def _unread(runs: Sequence[RunContents]) -> str:
    """What could not be read, once for all runs that it is true of."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for line in run.unread:
            names.setdefault(line, []).append(run.name)
    of = {line: f" of {', '.join(some)}" if len(runs) > 1 else "" for line, some in names.items()}
    return "\n".join(f'<p class="faint unread">Not shown{escape(of[line])}: {escape(line)}</p>' for line in names)


def _overview(runs: Sequence[RunContents]) -> str:
    """How each run is, and the figures that one asks for first."""
    tests = list(dict.fromkeys(name for run in runs for name in run.scores))[:3]
    rows = []
    for run in runs:
        best, seconds = run.best("bleu"), run.training_seconds
        rows.append((
            escape(run.name), _state(run),
            f'{best[1]:.2f} <span class="faint">at {best[0]:,}</span>' if best else sections.NOTHING,
            *(_bleu(run.scores.get(test, {})) for test in tests),
            sections.duration(seconds) if seconds else sections.NOTHING,
        ))  # fmt: skip
    head = ("run", "state", "best dev BLEU", *(f"BLEU on {escape(test)}" for test in tests), "time in steps")
    if len(runs) > 1:
        return table(head, rows, range(2, len(head))) + "".join(map(_weights, runs))
    told = f"<p><strong>{rows[0][0]}</strong> {rows[0][1]}</p>{_weights(runs[0])}"
    has_figures = any(cell != sections.NOTHING for cell in rows[0][2:])
    return told + (table(head[2:], [rows[0][2:]]) if has_figures else "")


def _weights(run: RunContents) -> str:
    """Which of averaged weights and best checkpoint the run stands for."""
    if run.config is None or run.run.is_bundle:
        return ""
    try:
        default = default_weights(run.run, run.config.training.best_metric)
    except MtformerError as error:
        run.unread.append(str(error))
        return ""
    return (
        f"<p>{escape(run.name)} stands for the {escape(default.text)}.</p>"
        if default is not None and default.text
        else ""
    )


def _bleu(card: dict[str, Any]) -> str:
    return sections.number(sections.score_values(card).get("BLEU"))


def _parts(run: RunContents, number: int, most_weights: int) -> list[Part]:
    """What a report shows of one run by itself; adds to `run.unread`."""
    unspaced, sentences = by_characters(run), judged(run, run.unread)
    found = [
        ("samples", "Translations of dev over time", over_time(run.samples, unspaced)),
        ("sentences", "Best and worst test sentences", best_and_worst(sentences, unspaced)),
        ("attention", "Attention", _attention(run, f"weights-{number}", heatmaps.choose(sentences, run), most_weights)),
        ("speed", "Speed and time", sections.speed(run)),
        ("data", "Data", sections.data(run, run.unread)),
        ("parameters", "Parameters", _told(run, "the parameters", lambda: _parameters(run))),
        ("config", "Config", sections.config(run)),
        ("commands", "The same again", sections.commands(run)),
    ]
    if run.records and not run.samples:
        run.unread.append(
            f"translations of dev over time, for there is no {run.run.samples.name}, as in runs without dev data or of "
            "an older version"
        )
    return found


def _told(run: RunContents, what: str, make: Callable[[], str]) -> str:
    """A part that needs files which may not be there or not be whole."""
    try:
        return make()
    except (MtformerError, OSError) as error:
        run.unread.append(f"{what}: {error}")
        return ""


def _parameters(run: RunContents) -> str:
    if run.config is None or not run.run.tokenizer.is_dir():
        return ""
    return parameters(run.config.model, TokenizerPair.load(run.run.tokenizer))


def _attention(run: RunContents, name: str, chosen: Sequence[tuple[str, str, str | None]], most_weights: int) -> str:
    if not chosen or run.config is None or not (run.run.steps() or run.run.is_bundle):
        return ""

    def make() -> str:
        translator = Translator.load(run.run.path, device="cpu")

        def maps(source: str, language: str | None) -> AttentionMaps:
            return attention_maps(translator.into(language), source)

        return heatmaps.heatmaps_html(name, heatmaps.maps_of(chosen, maps, most_weights))

    return _told(run, "attention", make)
