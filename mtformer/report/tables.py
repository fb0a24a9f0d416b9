"""Tables of a report: scores, starts, speed, data, parameters and config."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch

from mtformer.config.loading import leaves, load_defaults
from mtformer.config.yaml_text import dotted
from mtformer.data.data_report import DataReport
from mtformer.evaluation.card import ScoreCard, score_differences
from mtformer.experiment.runs import RunContents, differing_keys, is_number, without_folder
from mtformer.experiment.sweep import short_keys
from mtformer.formatting import format_duration
from mtformer.model.transformer import Transformer
from mtformer.templating import Table
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.figures import FIGURES

NOTHING = "–"
MAX_CHANGE = 60  # changes with more characters, such as those of data checksums, are shown as "changed"
Systems = Sequence[tuple[str, Sequence[RunContents]]]  # (label, runs that differ only in their seeds)


def format_plain(value: Any) -> str:
    """Return a value of a config or score card as text without JSON syntax."""
    if isinstance(value, dict):
        value = [f"{key}: {format_plain(one)}" for key, one in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(format_plain, value)) or NOTHING
    return NOTHING if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def format_time(text: Any) -> str:
    """Return an ISO 8601 timestamp as date, time and time zone."""
    return format_plain(text).replace("T", " ").replace("+00:00", " UTC")


def resumes(run: RunContents, kind: str = "resume") -> list[tuple[int, str, dict[str, list[Any]]]]:
    """Return step, time, and changes (old and new value) of each resume; earlier versions recorded only the step.

    With the kind `plan`, return the same of each change of the number of steps by `max_minutes`.
    """
    records = [one for one in run.records if one["kind"] == kind and is_number(one["step"])]
    return [(one["step"], format_time(one.get("time")), _pairs(one.get("changes"))) for one in records]


def _pairs(changes: Any) -> dict[str, list[Any]]:
    """Return the old and new values by key; anything else, which an edited file may contain, is left out."""
    items = changes.items() if isinstance(changes, dict) else ()
    return {key: pair for key, pair in items if isinstance(pair, list) and len(pair) == 2}


def describe_changes(changes: Mapping[str, Sequence[Any]], prefix: str = "") -> str:
    """Return the changes to keys with this prefix as text."""
    texts = {key: " → ".join(map(format_plain, pair)) for key, pair in changes.items() if key.startswith(prefix)}
    return ", ".join(f"{key} {text if len(text) <= MAX_CHANGE else 'changed'}" for key, text in texts.items())


def starts(run: RunContents) -> Table | None:
    """Return the time, step and device of the first start and of each resume, and the settings that changed."""
    if run.state.started is None:
        return None
    device = next((one["device"][0] for *_, one in resumes(run) if "device" in one), run.made_with.get("device"))
    rows = [("started", format_time(run.state.started), "0", format_plain(device), "")]
    for step, when, changes in resumes(run):
        device = changes.pop("device", (None, device))[1]
        rows.append(("resumed", when, f"{step:,}", format_plain(device), describe_changes(changes)))
    return Table(("", "time", "step", "device", "changes"), rows, (2,))


def speed(run: RunContents) -> Table | None:
    """Return tokens per second, how training time was spent, the time left, and the package versions."""
    rows: list[tuple[str, str]] = []
    for figure in FIGURES:
        values = [value for _, value in run.points("train", figure.key)]
        if figure.summary and values and (any(values) or not figure.is_exceptional):
            label, summarize, shown = figure.summary
            rows.append((label, shown.format(summarize(values))))
    if left := run.points("train", "seconds_left"):
        rows.append(("training time without validations", format_duration(run.training_seconds)))
    if left and run.state.state == "running":
        rows.append(("time left", f"about {format_duration(left[-1][1])}, plus validations"))
    rows += [("ended", format_time(run.state.ended))] if run.state.ended is not None else []
    keys = ("precision", "processes", "mtformer", "python", "torch", "sentencepiece")
    rows += [(key, str(run.made_with[key])) for key in keys if key in run.made_with]
    return Table((), rows) if rows else None


def scores(systems: Systems) -> list[dict[str, Any]]:
    """Return the scores of each test set, with signatures and settings: a row for each run, and means over seeds."""
    sets = []
    runs = [run for _, some in systems for run in some]
    for test in dict.fromkeys(name for run in runs for name in run.scores):
        cards = [(run.name, run.scores[test]) for run in runs if test in run.scores]
        first_name, first = cards[0]
        labels = list(dict.fromkeys(score.label for _, card in cards for score in card.scores))
        rows = [
            (name, *(format_scores([run.scores[test] for run in group], label) for label in labels))
            for system in systems
            for name, group in [*([system] if len(system[1]) > 1 else []), *((run.name, [run]) for run in system[1])]
            if all(test in run.scores for run in group)
        ]
        sets.append({
            "name": test,
            "num_sentences": first.num_sentences,
            "table": Table(("run", *labels), rows, range(1, 1 + len(labels))),
            "differences": [
                f"{name} cannot be compared with {first_name}: {'; '.join(found)}"
                for name, card in cards[1:]
                if (found := score_differences(first, card))
            ],
            "cards": [(f"Score card of {name}", _card(card)) for name, card in cards],
        })  # fmt: skip
    return sets


def format_scores(cards: Sequence[ScoreCard], label: str) -> str:
    """Return the score of a card, or mean and standard deviation of several."""
    values = [score.value for card in cards for score in card.scores if score.label == label]
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation}" if values else NOTHING


def _card(card: ScoreCard) -> Table:
    rows: list[tuple[str, Any]] = [(f"signature of {one.label}", one.signature) for one in card.scores]
    for key, value in card.model_dump(exclude={"scores", "name", "num_sentences"}).items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{key}.{name}".strip("."), each) for name, each in inner]
    return Table((), [(name, format_plain(value)) for name, value in rows])


def data(run: RunContents) -> Table | None:
    """Return the number of pairs read, kept and left out, and of tokens per side, in total and for each corpus."""
    if run.data_report is None or "read" not in run.data_report:  # the report of a bundle has no counts
        return None
    try:
        corpora = run.data_report.get("corpora", {})
        columns = {"all" if corpora else "pairs": run.data_report, **corpora}
        reports = {name: DataReport.from_dict(one) for name, one in columns.items()}
        rows = _data_rows(list(reports.values()))
    except (AttributeError, TypeError, KeyError) as error:
        run.unread.append(f"{run.run.data_report}: damaged ({error!r})")
        return None
    return Table(("", *reports) if corpora else (), rows, range(1, 1 + len(reports)))


def _data_rows(reports: Sequence[DataReport]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []

    def add(name: str, values: Sequence[float | None], form: str = ",") -> None:
        if any(value is not None for value in values):
            rows.append((name, *(format(value, form) if is_number(value) else NOTHING for value in values)))

    add("pairs read", [one.read for one in reports])
    add("pairs kept", [one.kept for one in reports])
    for reason in dict.fromkeys(reason for one in reports for reason in one.left_out):
        add(f"left out: {reason}", [one.left_out.get(reason) for one in reports])
    for side, title in (("src", "source"), ("tgt", "target")):
        add(f"{title} tokens", [one.tokens[side] for one in reports])
        add(f"{title} tokens per line", [one.tokens[side] / one.kept if one.kept else None for one in reports], ".1f")
        add(f"unknown {title} tokens", [one.unknown_rate(side) for one in reports], ".3%")
        add(f"{title} lines without tokens", [one.blank[side] or None for one in reports])
        for name in dict.fromkeys(name for one in reports for name in one.unusual[side]):
            add(f"{title} lines with {name}", [one.unusual[side].get(name) for one in reports])
    return rows


def parameters(run: RunContents) -> Table | None:
    """Return the number of parameters, of which tied ones are counted once, and their size."""
    if run.config is None or not run.run.tokenizer.is_dir():
        return None
    tokenizers = TokenizerPair.load(run.run.tokenizer)
    with torch.device("meta"):
        model = Transformer(run.config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    size = sum(each.numel() for each in model.parameters())
    return Table((), [("parameters", f"{size:,}"), ("MB in fp32", f"{4 * size / 1e6:.2f}")])


def config(run: RunContents) -> dict[str, Any]:
    """Return the values that differ from the defaults, and all values; for an invalid config, return its text."""
    if run.loaded is None:
        return {"text": run.run.config.read_text(encoding="utf-8", errors="replace")}
    own = run.loaded.config
    default = leaves(load_defaults().config)
    rows = [(dotted(path), format_plain(value), format_plain(default.get(path))) for path, value in leaves(own).items()]
    head = ("key", "value", "default")
    return {"changed": Table(head, [row for row in rows if row[1] != row[2]]), "all": Table(head, rows)}


def config_differences(runs: Sequence[RunContents]) -> Table | None:
    """Return a row for each run with the values that differ and affect the result; None without differences."""
    known = [(run.name, leaves(run.config)) for run in runs if run.config is not None]
    configs = [(name, {dotted(path): value for path, value in values.items()}) for name, values in known]
    keys = differing_keys(config for _, config in configs)
    cells = [(name, *(format_plain(without_folder(key, one.get(key))) for key in keys)) for name, one in configs]
    return Table(("run", *short_keys(keys).values()), cells) if keys else None
