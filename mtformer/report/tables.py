"""Tables of a report: scores, starts, speed, data, parameters and config."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from mtformer.config.loading import leaves, load_defaults
from mtformer.config.yaml_text import dotted
from mtformer.data.data_report import DataReport
from mtformer.errors import DataError
from mtformer.evaluation.card import ScoreCard, read_texts, score_differences
from mtformer.evaluation.scores import looks_tokenized, num_decimals
from mtformer.experiment.runs import RunContents, differing_keys, is_number, without_folder
from mtformer.experiment.sweep import short_keys
from mtformer.formatting import format_duration
from mtformer.model.transformer import Transformer
from mtformer.templating import Table
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.figures import FIGURES

NOTHING = "–"
"""Text of a cell without a value."""
TOKENIZED_REFERENCES = (
    "the references look tokenized; their scores are not comparable to published ones; use the original text"
)
"""Warning beside the scores of a test set."""
MAX_CHANGE = 60
"""Changes with more characters, such as those of data checksums, are shown as "changed"."""


class ReportedSystem(NamedTuple):
    """A system of a report: runs that differ only in their seeds."""

    label: str
    runs: Sequence[RunContents]


class Resume(NamedTuple):
    """A resume of a run, or a new plan."""

    step: int
    time: str
    changes: dict[str, list[Any]]
    """Old and new value of each key that changed; empty for records of earlier versions, which have only the step."""


def format_plain(value: Any) -> str:
    """Return a value of a config or score card as text without JSON syntax."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        value = [f"{key}: {format_plain(item)}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        items = map(format_plain, value)
        return ", ".join(items) or NOTHING
    return str(value)


def format_time(value: Any) -> str:
    """Return an ISO 8601 timestamp as date, time and time zone."""
    timestamp = format_plain(value)
    return timestamp.replace("T", " ").replace("+00:00", " UTC")


def resumes(run: RunContents, kind: str = "resume") -> list[Resume]:
    """Return the resumes of a run; with the kind `plan`, the changes of the number of steps by `max_minutes`."""
    resumes_of_kind = []
    for record in run.records:
        if record["kind"] == kind and is_number(record["step"]):
            time = format_time(record.get("time"))
            changes = _valid_changes(record.get("changes"))
            resumes_of_kind.append(Resume(record["step"], time, changes))
    return resumes_of_kind


def _valid_changes(changes: Any) -> dict[str, list[Any]]:
    """Return the old and new values by key; anything else, which an edited file may contain, is left out."""
    if not isinstance(changes, dict):
        return {}
    lists = {key: values for key, values in changes.items() if isinstance(values, list)}
    return {key: values for key, values in lists.items() if len(values) == 2}


def describe_changes(changes: Mapping[str, Sequence[Any]], prefix: str = "") -> str:
    """Return the changes to keys with this prefix as text."""
    descriptions = []
    for key, old_and_new in changes.items():
        if key.startswith(prefix):
            values = map(format_plain, old_and_new)
            change = " → ".join(values)
            if len(change) > MAX_CHANGE:
                change = "changed"
            descriptions.append(f"{key} {change}")
    return ", ".join(descriptions)


def starts(run: RunContents) -> Table | None:
    """Return the time, step and device of the first start and of each resume, and the settings that changed."""
    if run.state.started is None:
        return None
    device = _first_device(run)
    start_time = format_time(run.state.started)
    rows = [("started", start_time, "0", format_plain(device), "")]
    for resume in resumes(run):
        changes = dict(resume.changes)
        if "device" in changes:  # it has a column of its own
            _, device = changes.pop("device")
        step = f"{resume.step:,}"
        rows.append(("resumed", resume.time, step, format_plain(device), describe_changes(changes)))
    return Table(("", "time", "step", "device", "changes"), rows, (2,))


def _first_device(run: RunContents) -> Any:
    """Return the device of the first start: the old one of the first change, or that of the latest checkpoint."""
    for resume in resumes(run):
        if "device" in resume.changes:
            first_device, _ = resume.changes["device"]
            return first_device
    return run.made_with.get("device")


def speed(run: RunContents) -> Table | None:
    """Return tokens per second, how training time was spent, the time left, and the package versions."""
    rows = _figure_rows(run)
    estimates = run.points("train", "seconds_left")
    if estimates:
        rows.append(("training time without validations", format_duration(run.training_seconds)))
    if estimates and run.state.state == "running":
        _, seconds_left = estimates[-1]
        rows.append(("time left", f"about {format_duration(seconds_left)}"))
    if run.state.ended is not None:
        rows.append(("ended", format_time(run.state.ended)))

    for key in ("precision", "processes", "mtformer", "python", "torch", "sentencepiece"):
        if key in run.made_with:
            rows.append((key, str(run.made_with[key])))
    return Table((), rows) if rows else None


def _figure_rows(run: RunContents) -> list[tuple[str, str]]:
    """Return the label and value of each training figure with a summary; exceptional ones only if they occurred."""
    rows = []
    for figure in FIGURES:
        if figure.summary is None:
            continue
        values = [value for _, value in run.points("train", figure.key)]
        is_shown = any(values) if figure.is_exceptional else bool(values)
        if is_shown:
            label, summarize, value_format = figure.summary
            rows.append((label, value_format.format(summarize(values))))
    return rows


def scores(systems: Sequence[ReportedSystem]) -> list[dict[str, Any]]:
    """Return the scores of each test set, with signatures and settings: a row for each run, and means over seeds."""
    runs = chain.from_iterable(system.runs for system in systems)
    tests = dict.fromkeys(chain.from_iterable(run.scores for run in runs))
    return [_scores_on(test, systems) for test in tests]


def _scores_on(test: str, systems: Sequence[ReportedSystem]) -> dict[str, Any]:
    """Return the scores of all systems on a test set, for the template."""
    runs = chain.from_iterable(system.runs for system in systems)
    scored_runs = [run for run in runs if test in run.scores]
    card_of = {run.name: run.scores[test] for run in scored_runs}
    labels = _labels(card_of.values())
    number_columns = range(1, 1 + len(labels))

    rows = []
    for row_name, runs_of_row in _score_rows(systems):
        if all(test in run.scores for run in runs_of_row):
            cards = [run.scores[test] for run in runs_of_row]
            cells = [format_scores(cards, label) for label in labels]
            rows.append((row_name, *cells))

    _, first_card = next(iter(card_of.items()))
    return {
        "name": test,
        "num_sentences": first_card.num_sentences,
        "table": Table(("run", *labels), rows, number_columns),
        "warnings": [*_reference_warnings(test, scored_runs), *_warnings(card_of)],
        "cards": [(f"Score card of {name}", _card(card)) for name, card in card_of.items()],
    }


def _reference_warnings(test: str, runs: Sequence[RunContents]) -> list[str]:
    """Return a warning if the references of a test set look tokenized, unless BLEU of tokens was chosen.

    Files that cannot be read are skipped, because the section with the sentences reports them.
    """
    for run in runs:
        card = run.scores[test]
        with suppress(DataError):
            texts, _ = read_texts(run.run.evaluation(test), card)
            if card.evaluation.bleu_tokenizer != "none" and any(map(looks_tokenized, texts.references)):
                return [TOKENIZED_REFERENCES]
    return []


def _warnings(card_of: Mapping[str, ScoreCard]) -> list[str]:
    """Return a warning for each run whose scores cannot be compared with those of the first run."""
    first_name, first_card = next(iter(card_of.items()))
    warnings = []
    for name, card in card_of.items():
        differences = score_differences(first_card, card)
        if differences:
            warnings.append(f"{name} cannot be compared with {first_name}: {'; '.join(differences)}")
    return warnings


def _labels(cards: Iterable[ScoreCard]) -> list[str]:
    """Return the labels of all scores, in the order of the cards."""
    scores = chain.from_iterable(card.scores for card in cards)
    return list(dict.fromkeys(score.label for score in scores))


def _score_rows(systems: Sequence[ReportedSystem]) -> Iterator[tuple[str, Sequence[RunContents]]]:
    """Yield name and runs of each row of a table of scores: a system with several runs, and after it each run."""
    for system in systems:
        if len(system.runs) > 1:
            yield system.label, system.runs
        for run in system.runs:
            yield run.name, [run]


def format_scores(cards: Sequence[ScoreCard], label: str) -> str:
    """Return the score with this label of a card, or mean and standard deviation of several."""
    scores = chain.from_iterable(card.scores for card in cards)
    scores_of_metric = [score for score in scores if score.label == label]
    if not scores_of_metric:
        return NOTHING
    values = [score.value for score in scores_of_metric]
    decimals = num_decimals(scores_of_metric[0].name)
    text = f"{fmean(values):.{decimals}f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.{decimals}f}"
    return text


def _card(card: ScoreCard) -> Table:
    """Return all values of a score card, with dotted names."""
    rows = []
    for score in card.scores:
        rows.append((f"signature of {score.label}", format_plain(score.signature)))
    settings = card.model_dump(exclude={"scores", "name", "num_sentences"})
    for key, value in settings.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", format_plain(item)) for name, item in value.items()]
        else:
            rows.append((key, format_plain(value)))
    return Table((), rows)


def data(run: RunContents) -> Table | None:
    """Return the number of pairs read, kept and left out, and of tokens per side, in total and for each corpus."""
    if run.data_report is None:
        return None
    has_counts = "read" in run.data_report  # not in the report of a bundle
    if not has_counts:
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
    head = ("", *reports) if corpora else ()
    number_columns = range(1, 1 + len(reports))
    return Table(head, rows, number_columns)


def _data_rows(reports: Sequence[DataReport]) -> list[tuple[str, ...]]:
    """Return the rows of the data table, with one column for each report; rows without any value are left out."""
    rows: list[tuple[str, ...]] = []

    def add(name: str, values: Sequence[float | None], number_format: str = ",") -> None:
        has_values = any(value is not None for value in values)
        if has_values:
            cells = [format(value, number_format) if is_number(value) else NOTHING for value in values]
            rows.append((name, *cells))

    add("pairs read", [report.read for report in reports])
    add("pairs kept", [report.kept for report in reports])
    for reason in _names(report.left_out for report in reports):
        add(f"left out: {reason}", [report.left_out.get(reason) for report in reports])

    for side, title in (("src", "source"), ("tgt", "target")):
        tokens_per_line = [_tokens_per_line(report, side) for report in reports]
        unknown_rates = [report.unknown_rate(side) for report in reports]
        blank_lines = [report.blank[side] or None for report in reports]  # the row is left out if all are 0
        add(f"{title} tokens", [report.tokens[side] for report in reports])
        add(f"{title} tokens per line", tokens_per_line, ".1f")
        add(f"unknown {title} tokens", unknown_rates, ".3%")
        add(f"{title} lines without tokens", blank_lines)
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
    src_vocab_size = tokenizers.src.vocab_size
    tgt_vocab_size = tokenizers.tgt.vocab_size
    with torch.device("meta"):
        model = Transformer(run.config.model, src_vocab_size, tgt_vocab_size)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    megabytes = 4 * num_parameters / 1e6
    rows = [("parameters", f"{num_parameters:,}"), ("MB in fp32", f"{megabytes:.2f}")]
    return Table((), rows)


def config(run: RunContents) -> dict[str, Any]:
    """Return the values that differ from the defaults, and all values; for an invalid config, return its text."""
    if run.loaded is None:
        text = run.run.config.read_text(encoding="utf-8", errors="replace")
        return {"text": text}

    defaults = leaves(load_defaults().config)
    rows = []
    changed_rows = []
    for path, value in leaves(run.loaded.config).items():
        value_text = format_plain(value)
        default_text = format_plain(defaults.get(path))
        row = (dotted(path), value_text, default_text)
        rows.append(row)
        if value_text != default_text:
            changed_rows.append(row)

    head = ("key", "value", "default")
    return {"changed": Table(head, changed_rows), "all": Table(head, rows)}


def config_differences(runs: Sequence[RunContents]) -> Table | None:
    """Return a row for each run with the values that differ and affect the result; None without differences."""
    values_of: dict[str, dict[str, Any]] = {}
    """Config values by dotted key, for each run."""
    for run in runs:
        if run.config is not None:
            values = leaves(run.config)
            values_of[run.name] = {dotted(path): value for path, value in values.items()}

    keys = differing_keys(values_of.values())
    if not keys:
        return None
    rows = []
    for name, values_of_run in values_of.items():
        shown_values = [without_folder(key, values_of_run.get(key)) for key in keys]
        rows.append((name, *map(format_plain, shown_values)))
    column_titles = short_keys(keys).values()
    return Table(("run", *column_titles), rows)
