"""Tables of a report: scores, starts, speed, data, parameters and config."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
"""Text of a cell without a value."""
MAX_CHANGE = 60
"""Changes with more characters, such as those of data checksums, are shown as "changed"."""
Systems = Sequence[tuple[str, Sequence[RunContents]]]
"""Label and runs of each system; the runs differ only in their seeds."""


def format_plain(value: Any) -> str:
    """Return a value of a config or score card as text without JSON syntax."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        value = [f"{key}: {format_plain(item)}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(format_plain, value)) or NOTHING
    return str(value)


def format_time(text: Any) -> str:
    """Return an ISO 8601 timestamp as date, time and time zone."""
    return format_plain(text).replace("T", " ").replace("+00:00", " UTC")


def resumes(run: RunContents, kind: str = "resume") -> list[tuple[int, str, dict[str, list[Any]]]]:
    """Return step, time, and changes (old and new value) of each resume; earlier versions recorded only the step.

    With the kind `plan`, return the same of each change of the number of steps by `max_minutes`.
    """
    resumes_found = []
    for record in run.records:
        if record["kind"] == kind and is_number(record["step"]):
            time = format_time(record.get("time"))
            resumes_found.append((record["step"], time, _valid_changes(record.get("changes"))))
    return resumes_found


def _valid_changes(changes: Any) -> dict[str, list[Any]]:
    """Return the old and new values by key; anything else, which an edited file may contain, is left out."""
    if not isinstance(changes, dict):
        return {}
    return {key: pair for key, pair in changes.items() if isinstance(pair, list) and len(pair) == 2}


def describe_changes(changes: Mapping[str, Sequence[Any]], prefix: str = "") -> str:
    """Return the changes to keys with this prefix as text."""
    descriptions = []
    for key, old_and_new in changes.items():
        if key.startswith(prefix):
            change = " → ".join(map(format_plain, old_and_new))
            if len(change) > MAX_CHANGE:
                change = "changed"
            descriptions.append(f"{key} {change}")
    return ", ".join(descriptions)


def starts(run: RunContents) -> Table | None:
    """Return the time, step and device of the first start and of each resume, and the settings that changed."""
    if run.state.started is None:
        return None
    device = _first_device(run)
    rows = [("started", format_time(run.state.started), "0", format_plain(device), "")]
    for step, time, changes in resumes(run):
        if "device" in changes:
            _, device = changes.pop("device")
        rows.append(("resumed", time, f"{step:,}", format_plain(device), describe_changes(changes)))
    return Table(("", "time", "step", "device", "changes"), rows, (2,))


def _first_device(run: RunContents) -> Any:
    """Return the device of the first start: the old one of the first change, or that of the latest checkpoint."""
    for _, _, changes in resumes(run):
        if "device" in changes:
            return changes["device"][0]
    return run.made_with.get("device")


def speed(run: RunContents) -> Table | None:
    """Return tokens per second, how training time was spent, the time left, and the package versions."""
    rows: list[tuple[str, str]] = []
    for figure in FIGURES:
        values = [value for _, value in run.points("train", figure.key)]
        is_shown = bool(values) and (any(values) or not figure.is_exceptional)
        if figure.summary and is_shown:
            label, summarize, shown = figure.summary
            rows.append((label, shown.format(summarize(values))))

    estimates = run.points("train", "seconds_left")
    if estimates:
        rows.append(("training time without validations", format_duration(run.training_seconds)))
    if estimates and run.state.state == "running":
        _, seconds_left = estimates[-1]
        rows.append(("time left", f"about {format_duration(seconds_left)}, plus validations"))
    if run.state.ended is not None:
        rows.append(("ended", format_time(run.state.ended)))

    keys = ("precision", "processes", "mtformer", "python", "torch", "sentencepiece")
    rows += [(key, str(run.made_with[key])) for key in keys if key in run.made_with]
    return Table((), rows) if rows else None


def scores(systems: Systems) -> list[dict[str, Any]]:
    """Return the scores of each test set, with signatures and settings: a row for each run, and means over seeds."""
    runs = list(chain.from_iterable(runs for _, runs in systems))
    tests = dict.fromkeys(chain.from_iterable(run.scores for run in runs))
    return [_scores_on(test, systems) for test in tests]


def _scores_on(test: str, systems: Systems) -> dict[str, Any]:
    """Return the scores of all systems on a test set, for the template."""
    runs = chain.from_iterable(runs for _, runs in systems)
    card_of = {run.name: run.scores[test] for run in runs if test in run.scores}
    labels = _labels(card_of.values())

    rows = []
    for name, group in _groups(systems):
        if all(test in run.scores for run in group):
            cards = [run.scores[test] for run in group]
            rows.append((name, *(format_scores(cards, label) for label in labels)))

    first_name, first_card = next(iter(card_of.items()))
    warnings = []
    for name, card in card_of.items():
        messages = score_differences(first_card, card)
        if messages:
            warnings.append(f"{name} cannot be compared with {first_name}: {'; '.join(messages)}")

    return {
        "name": test,
        "num_sentences": first_card.num_sentences,
        "table": Table(("run", *labels), rows, range(1, 1 + len(labels))),
        "differences": warnings,
        "cards": [(f"Score card of {name}", _card(card)) for name, card in card_of.items()],
    }


def _labels(cards: Iterable[ScoreCard]) -> list[str]:
    """Return the labels of all scores, in the order of the cards."""
    scores = chain.from_iterable(card.scores for card in cards)
    return list(dict.fromkeys(score.label for score in scores))


def _groups(systems: Systems) -> Iterator[tuple[str, Sequence[RunContents]]]:
    """Yield the rows of a table of scores: each system with several runs, and after it each of its runs."""
    for label, runs in systems:
        if len(runs) > 1:
            yield label, runs
        for run in runs:
            yield run.name, [run]


def format_scores(cards: Sequence[ScoreCard], label: str) -> str:
    """Return the score of a card, or mean and standard deviation of several."""
    scores = chain.from_iterable(card.scores for card in cards)
    values = [score.value for score in scores if score.label == label]
    if not values:
        return NOTHING
    mean = f"{fmean(values):.2f}"
    return f"{mean} ± {stdev(values):.2f}" if len(values) > 1 else mean


def _card(card: ScoreCard) -> Table:
    """Return all values of a score card, with dotted names."""
    rows = [(f"signature of {score.label}", format_plain(score.signature)) for score in card.scores]
    for key, value in card.model_dump(exclude={"scores", "name", "num_sentences"}).items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", format_plain(item)) for name, item in value.items()]
        else:
            rows.append((key, format_plain(value)))
    return Table((), rows)


def data(run: RunContents) -> Table | None:
    """Return the number of pairs read, kept and left out, and of tokens per side, in total and for each corpus."""
    if run.data_report is None or "read" not in run.data_report:  # the report of a bundle has no counts
        return None
    try:
        corpora = run.data_report.get("corpora", {})
        total_name = "all" if corpora else "pairs"
        reports = {total_name: DataReport.from_dict(run.data_report)}
        for name, contents in corpora.items():
            reports[name] = DataReport.from_dict(contents)
        rows = _data_rows(list(reports.values()))
    except (AttributeError, TypeError, KeyError) as error:
        run.unread.append(f"{run.run.data_report}: damaged ({error!r})")
        return None
    return Table(("", *reports) if corpora else (), rows, range(1, 1 + len(reports)))


def _data_rows(reports: Sequence[DataReport]) -> list[tuple[str, ...]]:
    """Return the rows of the data table, with one column for each report; rows without any value are left out."""
    rows: list[tuple[str, ...]] = []

    def add(name: str, values: Sequence[float | None], form: str = ",") -> None:
        if any(value is not None for value in values):
            cells = [format(value, form) if is_number(value) else NOTHING for value in values]
            rows.append((name, *cells))

    add("pairs read", [report.read for report in reports])
    add("pairs kept", [report.kept for report in reports])
    for reason in _names(report.left_out for report in reports):
        add(f"left out: {reason}", [report.left_out.get(reason) for report in reports])

    for side, title in (("src", "source"), ("tgt", "target")):
        add(f"{title} tokens", [report.tokens[side] for report in reports])
        add(f"{title} tokens per line", [_tokens_per_line(report, side) for report in reports], ".1f")
        add(f"unknown {title} tokens", [report.unknown_rate(side) for report in reports], ".3%")
        add(f"{title} lines without tokens", [report.blank[side] or None for report in reports])
        for name in _names(report.unusual[side] for report in reports):
            add(f"{title} lines with {name}", [report.unusual[side].get(name) for report in reports])
    return rows


def _names(counts: Iterable[Iterable[str]]) -> Iterable[str]:
    """Return the distinct keys of several dictionaries, in their order."""
    return dict.fromkeys(chain.from_iterable(counts))


def _tokens_per_line(report: DataReport, side: str) -> float | None:
    return report.tokens[side] / report.kept if report.kept else None


def parameters(run: RunContents) -> Table | None:
    """Return the number of parameters, of which tied ones are counted once, and their size."""
    if run.config is None or not run.run.tokenizer.is_dir():
        return None
    tokenizers = TokenizerPair.load(run.run.tokenizer)
    with torch.device("meta"):
        model = Transformer(run.config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    megabytes = 4 * num_parameters / 1e6
    return Table((), [("parameters", f"{num_parameters:,}"), ("MB in fp32", f"{megabytes:.2f}")])


def config(run: RunContents) -> dict[str, Any]:
    """Return the values that differ from the defaults, and all values; for an invalid config, return its text."""
    if run.loaded is None:
        return {"text": run.run.config.read_text(encoding="utf-8", errors="replace")}
    defaults = leaves(load_defaults().config)
    rows = []
    changed_rows = []
    for path, value in leaves(run.loaded.config).items():
        row = (dotted(path), format_plain(value), format_plain(defaults.get(path)))
        rows.append(row)
        if row[1] != row[2]:
            changed_rows.append(row)
    head = ("key", "value", "default")
    return {"changed": Table(head, changed_rows), "all": Table(head, rows)}


def config_differences(runs: Sequence[RunContents]) -> Table | None:
    """Return a row for each run with the values that differ and affect the result; None without differences."""
    values_of: dict[str, dict[str, Any]] = {}
    """Config values by dotted key, for each run."""
    for run in runs:
        if run.config is not None:
            values_of[run.name] = {dotted(path): value for path, value in leaves(run.config).items()}

    keys = differing_keys(values_of.values())
    if not keys:
        return None
    rows = []
    for name, values in values_of.items():
        cells = [format_plain(without_folder(key, values.get(key))) for key in keys]
        rows.append((name, *cells))
    return Table(("run", *short_keys(keys).values()), rows)
