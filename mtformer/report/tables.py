"""Tables of a report: scores, speed, data, parameters, config, and the commands that repeat the run."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mtformer.config.loading import config_diff, leaves
from mtformer.config.schema import Config, ModelConfig
from mtformer.config.yaml_text import dotted
from mtformer.data.data_report import DataReport
from mtformer.evaluation.card import ScoreCard, differences
from mtformer.experiment.runs import RunContents, format_duration, format_value, is_number
from mtformer.model.transformer import Transformer
from mtformer.templating import Table
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.figures import FIGURES

NOTHING = "–"


def format_number(value: Any, form: str = ".2f") -> str:
    return format(value, form) if is_number(value) else NOTHING


def speed(run: RunContents) -> Table | None:
    """Return tokens per second, shares of the time, and the remaining time."""
    rows: list[tuple[str, str]] = []
    for figure in FIGURES:
        values = [value for _, value in run.points("train", figure.key)]
        if figure.summary and values and (any(values) or not figure.is_exceptional):
            rows.append((figure.summary.label, figure.summary.format.format(figure.summary.summarize(values))))
    steps = run.points("train", "seconds_per_step")
    if steps:
        rows.append(("time in steps, validations not counted", format_duration(run.training_seconds)))
    state = run.state
    if steps and state.state == "running" and run.max_steps is not None:
        rows.append(
            ("left", f"about {format_duration((run.max_steps - run.step) * steps[-1][1])}, and the validations")
        )
    rows += [(name, when) for name in ("started", "resumed", "ended") if (when := getattr(state, name))]
    rows += [(key, str(run.made_with[key])) for key in ("device", "precision", "processes") if key in run.made_with]
    return Table((), rows) if rows else None


def scores(runs: Sequence[RunContents]) -> list[dict[str, Any]]:
    """Return the scores of each test set, a row for each run, with signatures and settings."""
    sets = []
    for test in dict.fromkeys(name for run in runs for name in run.scores):
        cards = [(run.name, run.scores[test]) for run in runs if test in run.scores]
        first_name, first = cards[0]
        labels = list(dict.fromkeys(score.label for _, card in cards for score in card.scores))
        sets.append({
            "name": test,
            "num_sentences": first.num_sentences,
            "table": Table(
                ("run", *labels),
                [(name, *(format_score(card, label) for label in labels)) for name, card in cards],
                range(1, 1 + len(labels)),
            ),
            "differences": [
                f"{name} does not compare with {first_name}: {'; '.join(found)}"
                for name, card in cards[1:]
                if (found := differences(first, card))
            ],
            "cards": [(name if len(runs) > 1 else "The score card", _card(card)) for name, card in cards],
        })  # fmt: skip
    return sets


def format_score(card: ScoreCard | None, label: str) -> str:
    values = [score.value for score in card.scores if score.label == label] if card is not None else []
    return format_number(values[0]) if values else NOTHING


def _card(card: ScoreCard) -> Table:
    rows: list[tuple[str, Any]] = [(f"signature of {one.label}", one.signature) for one in card.scores]
    for key, value in card.model_dump(exclude={"scores", "name", "num_sentences"}).items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{key} {name}".strip(), each) for name, each in inner]
    return Table((), [(name, format_value(value)) for name, value in rows])


def data(run: RunContents) -> Table | None:
    """Return pairs read, kept and left out, and tokens by side; a column for all and for each corpus."""
    if run.data_report is None or "read" not in run.data_report:  # that of a bundle has no counts
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
            rows.append((name, *(format_number(value, form) for value in values)))

    add("pairs read", [one.read for one in reports])
    add("pairs kept", [one.kept for one in reports])
    for reason in dict.fromkeys(reason for one in reports for reason in one.left_out):
        add(f"left out: {reason}", [one.left_out.get(reason) for one in reports])
    for side, title in (("src", "source"), ("tgt", "target")):
        add(f"{title} tokens", [one.tokens[side] for one in reports])
        add(f"{title} tokens per line", [one.tokens[side] / one.kept if one.kept else None for one in reports], ".1f")
        add(f"unknown {title} tokens", [one.unknown_rate(side) for one in reports], ".3%")
        add(f"{title} lines without a token", [one.blank[side] or None for one in reports])
        for name in dict.fromkeys(name for one in reports for name in one.unusual[side]):
            add(f"{title} lines with {name}", [one.unusual[side].get(name) for one in reports])
    return rows


def parameters(config: ModelConfig, tokenizers: TokenizerPair) -> Table:
    """Return the parameters by name; equal ones of all layers share a row, and tied ones are counted once."""
    with torch.device("meta"):
        model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    groups = Counter(
        (re.sub(r"\.\d+\.", ".*.", name, count=1), tuple(each.shape)) for name, each in model.named_parameters()
    )
    rows = []
    for (name, shape), count in groups.items():
        rows.append(
            (name, " × ".join(f"{size:,}" for size in shape), str(count), *_size(count * torch.Size(shape).numel()))
        )
    rows.append(("all", "", "", *_size(sum(each.numel() for each in model.parameters()))))
    return Table(("name; * is each layer", "shape", "times", "parameters", "MB in fp32"), rows, (2, 3, 4))


def _size(num_parameters: int) -> tuple[str, str]:
    return f"{num_parameters:,}", f"{4 * num_parameters / 1e6:.2f}"


def config(run: RunContents) -> dict[str, Any]:
    """Return the values that are not the default, and all; or the text of a file that cannot be read."""
    if run.loaded is None:
        return {"text": run.run.config.read_text(encoding="utf-8", errors="replace")}
    own = run.loaded.config
    languages = {"src_lang": own.data.src_lang, "tgt_lang": own.data.tgt_lang}
    default = leaves(Config.model_validate({"data": languages}))
    changed, rows = [], []
    for path, value in leaves(own).items():
        key, usual = dotted(path), default.get(path)
        is_set = value != usual or path in (("data", "src_lang"), ("data", "tgt_lang"))
        rows.append((key, format_value(value), "set" if is_set else "default"))
        if is_set:
            known = path in default and usual != value
            changed.append((key, format_value(value), format_value(usual) if known else NOTHING))
    return {"changed": Table(("key", "value", "default"), changed), "all": Table(("key", "value", "from"), rows)}


def config_differences(runs: Sequence[RunContents]) -> Table | None:
    """Return the values that are not the same in all runs, a column for each run; None for a single config."""
    known = [(run.name, run.config) for run in runs if run.config is not None]
    if len(known) < 2:
        return None
    first = known[0][1]
    keys = dict.fromkeys(key for _, other in known[1:] for key, _, _ in config_diff(first, other))
    values = [{dotted(path): value for path, value in leaves(one).items()} for _, one in known]
    rows = [(key, *(format_value(one[key]) if key in one else NOTHING for one in values)) for key in keys]
    return Table(("key", *(name for name, _ in known)), rows)


def commands(run: RunContents) -> dict[str, str]:
    """Return the commands that repeat the run, and the versions that it was made with."""
    path = run.run.path
    lines = [] if run.run.is_bundle else [["train", str(run.run.config), "--run-dir", f"{path}-again"]]
    if run.points("train", "loss"):
        lines.append(["reproduce", str(path)])
    if run.state.state in ("interrupted", "failed", "killed"):
        lines.append(["train", str(run.run.config), "--run-dir", str(path), "--resume"])
    if run.config is not None and run.config.data.test:
        lines.append(["eval", str(path), *_checkpoint_option(run)])
    lines.append(["report", str(path)])
    made_with = run.made_with or next((card.versions for card in run.scores.values()), {})
    packages = ("mtformer", "python", "torch", "sentencepiece")
    versions = [f"{name} {made_with[name]}" for name in packages if name in made_with]
    return {"text": "\n".join(shlex.join(["mtformer", *line]) for line in lines), "versions": ", ".join(versions)}


def _checkpoint_option(run: RunContents) -> Sequence[str]:
    """Return the option that names the weights that were scored, if they are those of a step."""
    for card in run.scores.values():
        folders = [Path(one.file).parent.name for one in card.checkpoints]
        if len(folders) == 1 and (found := re.fullmatch(r"step-(\d+)", folders[0])):
            return ["--checkpoint", str(int(found[1]))]
    return []
