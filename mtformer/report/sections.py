"""The parts of a report that are tables: scores, speed, data, parameters, config, and how to do it again."""

import json
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from mtformer.config.loading import config_diff
from mtformer.config.schema import Config
from mtformer.config.writing import leaves
from mtformer.config.yaml_text import dotted
from mtformer.data.report import DataReport
from mtformer.errors import DataError
from mtformer.evaluation.card import differences, read_card
from mtformer.experiment.runs import RunContents, is_number
from mtformer.page import table

NOTHING = "–"


def shown(value: Any) -> str:
    """A config's value as it is written on the command line; HTML."""
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def number(value: Any) -> str:
    """A score as it is printed."""
    return f"{value:.2f}" if is_number(value) else NOTHING


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"


def speed(run: RunContents) -> str:
    """Tokens a second, where the time went, and what is left of it."""
    rows: list[tuple[str, str]] = []
    tokens = [value for _, value in run.points("train", "tokens_per_second")]
    if tokens:
        rows.append(("tokens per second, source and target, median", f"{median(tokens):,.0f}"))
    for key, name in (("waiting_for_data", "waiting for data"), ("padding", "padding")):
        shares = [value for _, value in run.points("train", key)]
        if shares:
            rows.append((f"{name}, mean", f"{100 * sum(shares) / len(shares):.2g} %"))
    memory = [value for _, value in run.points("train", "memory_gb")]
    if memory:
        rows.append(("memory, most", f"{max(memory):.2f} GB"))
    for key, name in (("skipped_steps", "steps skipped"), ("split_batches", "batches cut in two to fit the memory")):
        if count := sum(value for _, value in run.points("train", key)):
            rows.append((name, f"{count:,.0f}"))
    steps = run.points("train", "seconds_per_step")
    if steps:
        rows.append(("time in steps, validations not counted", duration(run.training_seconds)))
    state = run.state
    if steps and state.state == "running" and run.max_steps is not None:
        rows.append(("left", f"about {duration((run.max_steps - run.step) * steps[-1][1])}, and the validations"))
    rows += [(name, escape(when)) for name, when in (("started", state.started), ("ended", state.ended)) if when]
    made_with = {key: run.made_with[key] for key in ("device", "precision", "processes") if key in run.made_with}
    rows += [(key, escape(str(value))) for key, value in made_with.items()]
    return table((), rows) if rows else ""


def scores(runs: Sequence[RunContents]) -> str:
    """BLEU and the others of each test set, a row a run, with signatures and settings to open."""
    parts = []
    for test in dict.fromkeys(name for run in runs for name in run.scores):
        having = [run for run in runs if test in run.scores]
        cards = [run.scores[test] for run in having]
        values = [score_values(card) for card in cards]
        labels = list(dict.fromkeys(label for of_card in values for label in of_card))
        rows = [
            (escape(run.name), *(number(of_card.get(label)) for label in labels))
            for run, of_card in zip(having, values, strict=True)
        ]
        lines = next((card["num_sentences"] for card in cards if is_number(card.get("num_sentences"))), None)
        size = f' <span class="faint">{lines:,} lines</span>' if lines is not None else ""
        parts.append(f"<h3>{escape(test)}{size}</h3>")
        head = ("run", *map(escape, labels))
        parts.append(table(head, rows, range(1, len(head))))
        parts.append(_unlike(having, test))
        parts += [_card(run.name if len(runs) > 1 else "The score card", run.scores[test]) for run in having]
    return "\n".join(parts)


def score_values(card: dict[str, Any]) -> dict[str, Any]:
    """Scores by their labels, of a card of any version."""
    return {str(one.get("label")): one.get("value") for one in _scores(card)}


def _scores(card: dict[str, Any]) -> list[dict[str, Any]]:
    found = card.get("scores")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _unlike(runs: Sequence[RunContents], test: str) -> str:
    """What makes the scores of later runs incomparable to those of the first, where the cards tell."""
    cards, unknown = [], []
    for run in runs:
        try:
            cards.append((run.name, read_card(run.run.evaluation(test))))
        except DataError:  # of another version
            unknown.append(run.name)
    lines = []
    for name, card in cards[1:]:
        if found := differences(cards[0][1], card):
            told = f"{name} does not compare with {cards[0][0]}: {'; '.join(found)}"
            lines.append(f'<p class="bad">{escape(told)}</p>')
    if unknown and len(runs) > 1:
        told = f"Whether they compare is not known, for these score cards are of another version: {', '.join(unknown)}"
        lines.append(f'<p class="faint">{escape(told)}</p>')
    return "".join(lines)


def _card(title: str, card: dict[str, Any]) -> str:
    rows = [(f"signature of {one.get('label')}", one.get("signature")) for one in _scores(card)]
    flat = [(key, value) for key, value in card.items() if key not in ("scores", "name", "num_sentences")]
    for key, value in flat:
        inner = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{key} {name}".strip(), each) for name, each in inner]
    cells = [(escape(name), shown(value)) for name, value in rows]
    return f"<details><summary>{escape(title)}</summary>{table((), cells)}</details>"


def data(run: RunContents, unread: list[str]) -> str:
    """Pairs read, kept and left out, and tokens by side; a column for all and for each corpus.

    Args:
        run: the run.
        unread: gets a line when its data report is not like those of this version.
    """
    if run.data_report is None:
        return ""
    try:
        corpora = run.data_report.get("corpora", {})
        columns = {"all" if corpora else "pairs": run.data_report, **corpora}
        reports = {name: DataReport.from_dict(_without_corpora(one)) for name, one in columns.items()}
        rows = _data_rows(list(reports.values()))
    except (AttributeError, TypeError, KeyError) as error:
        unread.append(f"{run.run.data_report}: not a data report of this version ({error!r})")
        return ""
    head = ("", *map(escape, reports)) if corpora else ()
    return table(head, rows, range(1, 1 + len(reports)))


def _without_corpora(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name != "corpora"}


def _data_rows(reports: Sequence[DataReport]) -> list[tuple[str, ...]]:
    def row(name: str, values: Sequence[float | None], form: str = ",") -> None:
        if any(value is not None for value in values):
            rows.append((escape(name), *(NOTHING if value is None else format(value, form) for value in values)))

    rows: list[tuple[str, ...]] = []
    row("pairs read", [one.read for one in reports])
    row("pairs kept", [one.kept for one in reports])
    for reason in dict.fromkeys(reason for one in reports for reason in one.left_out):
        row(f"left out: {reason}", [one.left_out.get(reason) for one in reports])
    for side, title in (("src", "source"), ("tgt", "target")):
        row(f"{title} tokens", [one.tokens[side] for one in reports])
        row(f"{title} tokens a line", [one.tokens[side] / one.kept if one.kept else None for one in reports], ".1f")
        row(f"{title} tokens that are unknown", [one.unknown_rate(side) for one in reports], ".3%")
        row(f"{title} lines without a token", [one.blank[side] or None for one in reports])
        for name in dict.fromkeys(name for one in reports for name in one.unusual[side]):
            row(f"{title} lines with {name}", [one.unusual[side].get(name) for one in reports])
    return rows


def config(run: RunContents) -> str:
    """Values that are not the default first; then all."""
    if run.loaded is None:
        return f"<pre>{escape(run.run.config.read_text(encoding='utf-8', errors='replace'))}</pre>"
    own = run.loaded.config
    languages = {"src_lang": own.data.src_lang, "tgt_lang": own.data.tgt_lang}
    default = leaves(Config.model_validate({"data": languages}))
    changed, rows = [], []
    for path, value in leaves(own).items():
        key, usual = dotted(path), default.get(path)
        is_set = value != usual or path in (("data", "src_lang"), ("data", "tgt_lang"))
        origin = "set" if is_set else "default"
        if run.loaded.origins[key].kind == "default":
            origin = "default, not in the file"
        rows.append((escape(key), shown(value), origin))
        if is_set:
            changed.append((escape(key), shown(value), shown(usual) if path in default and usual != value else NOTHING))
    return (
        table(("key", "value", "default"), changed)
        + f"<details><summary>All {len(rows)} values</summary>{table(('key', 'value', 'from'), rows)}"
        '<p class="faint">set: it differs from the default of this version. Not in the file: the run was made by a '
        "version that did not have it.</p></details>"
    )


def config_differences(runs: Sequence[RunContents]) -> str:
    """The values that are not the same in all runs, a column a run."""
    known = [(run.name, run.config) for run in runs if run.config is not None]
    if len(known) < 2:
        return ""
    first = known[0][1]
    keys = dict.fromkeys(key for _, other in known[1:] for key, _, _ in config_diff(first, other))
    if not keys:
        return "<p>The same in every value.</p>"
    values = [{dotted(path): value for path, value in leaves(one).items()} for _, one in known]
    rows = [(escape(key), *(shown(of_run[key]) if key in of_run else NOTHING for of_run in values)) for key in keys]
    return table(("key", *(escape(name) for name, _ in known)), rows)


def commands(run: RunContents) -> str:
    """What to type for the same again, and the versions that it was made with."""
    path = run.run.path
    lines = [] if run.run.is_bundle else [["train", str(run.run.config), "--run-dir", f"{path}-again"]]
    if run.points("train", "loss"):
        lines.append(["reproduce", str(path)])
    if run.state.state in ("interrupted", "failed", "killed"):
        lines.append(["train", str(run.run.config), "--run-dir", str(path), "--resume"])
    if run.config is not None and run.config.data.test:
        lines.append(["eval", str(path), *_checkpoint(run)])
    lines.append(["report", str(path)])
    text = "\n".join(shlex.join(["mtformer", *line]) for line in lines)
    made = run.made_with or next((card["versions"] for card in run.scores.values() if "versions" in card), {})
    versions = [
        f"{name} {value}" for name, value in made.items() if name in ("mtformer", "python", "torch", "sentencepiece")
    ]
    told = f"Made with {', '.join(versions)}" if versions else ""
    return f'<pre>{escape(text)}</pre><p class="faint">{escape(told)}</p>'


def _checkpoint(run: RunContents) -> Sequence[str]:
    """The option that names the weights that were scored, when they are those of a step."""
    for card in run.scores.values():
        files = card.get("checkpoints")
        if isinstance(files, list) and len(files) == 1 and isinstance(files[0], dict):
            folder = Path(str(files[0].get("file"))).parent.name
            if folder.startswith("step-") and folder[5:].isdecimal():
                return ["--checkpoint", str(int(folder[5:]))]
    return []
