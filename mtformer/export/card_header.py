"""Header of model cards, which the Hugging Face Hub reads: languages, license, data sets, base model, scores.

The Hub refuses a whole upload if a value has the wrong type, so the header is validated before anything is sent.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtformer.config.data import DataConfig, HubDataset
from mtformer.config.languages import NAMES, base_code
from mtformer.errors import ConfigError, log
from mtformer.evaluation.card import ScoreCard
from mtformer.evaluation.scores import num_decimals

WITHDRAWN = frozenset(["bh", "in", "iw", "ji", "jw", "mo", "sh"])
"""Two-letter codes that ISO 639-1 has withdrawn."""
PRIVATE = re.compile("q[a-t][a-z]")
"""Three-letter codes that ISO 639-2 reserves for private use."""
REPOSITORY = r"^[\w.-]+(/[\w.-]+)?$"
"""Name of a data set or model on the Hub."""
HEADER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
"""Header of a model card."""
NO_LICENSE = re.compile(r"\*\*License:\*\* not stated\..*?\n\n", re.DOTALL)
"""Paragraph of a model card without a license."""
UNKNOWN = "unknown"
"""License of a model card whose owner has not stated one."""

_OPEN = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Name = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""
Repository = Annotated[str, Field(pattern=REPOSITORY)]
"""Name of a data set or model on the Hub."""


class _Task(BaseModel):
    model_config = _OPEN
    type: Name


class _Dataset(BaseModel):
    model_config = _OPEN
    type: Name
    name: Name


class _Metric(BaseModel):
    model_config = _OPEN
    type: Name
    value: int | float


class _Result(BaseModel):
    model_config = _OPEN
    task: _Task
    dataset: _Dataset
    metrics: Annotated[list[_Metric], Field(min_length=1)]


class _Model(BaseModel):
    model_config = _OPEN
    name: Name
    results: list[_Result]


class CardHeader(BaseModel):
    """Values of a header that the Hub checks."""

    model_config = _OPEN
    language: list[Annotated[str, Field(pattern="^[a-z]{2,3}$")]] = []
    license: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9.-]*$")] = UNKNOWN
    library_name: str = "mtformer"
    pipeline_tag: str = "translation"
    tags: list[str] = []
    datasets: list[Repository] = []
    base_model: Repository | list[Repository] | None = None
    model_index: list[_Model] = Field(default=[], alias="model-index")


@dataclass(frozen=True)
class Ownership:
    """Facts that only the owner of a model knows; None and empty values leave the header as it is."""

    license: str | None = None
    base_model: str | None = None
    datasets: tuple[str, ...] = ()


def make_header(name: str, library: str, data: DataConfig, cards: Sequence[ScoreCard]) -> dict[str, Any]:
    """Return the header of a model card.

    Args:
        name: name of the model.
        library: name of the library that loads it, as the Hub writes it.
        data: the `data` section of its config.
        cards: its score cards.
    """
    codes: list[str] = []
    for direction in data.directions:
        codes += direction
    header: dict[str, Any] = {
        "language": iso_codes(dict.fromkeys(codes)),
        "license": UNKNOWN,
        "library_name": library,
        "pipeline_tag": "translation",
        "tags": ["mtformer"],
    }
    datasets = _hub_datasets(data.sources)
    if datasets:
        header["datasets"] = datasets
    if cards:
        header["model-index"] = [{"name": name, "results": [_result(card, data) for card in cards]}]
    return header


def iso_codes(languages: Iterable[str]) -> list[str]:
    """Return the ISO 639 codes of languages, each once; others are left out, with a message."""
    codes: dict[str, None] = {}
    for language in languages:
        code = base_code(language)
        is_known = code in NAMES or (len(code) == 3 and PRIVATE.fullmatch(code) is None)
        if is_known and code not in WITHDRAWN:
            codes[code] = None
        else:
            log.info("model card: language %s is left out of the header, because it is no ISO 639 code", language)
    return list(codes)


def _hub_datasets(sources: Iterable[object]) -> list[str]:
    """Return the names of the sources that are data sets on the Hub, not files or local folders, each once."""
    names: dict[str, None] = {}
    for source in sources:
        if isinstance(source, HubDataset):
            is_name = re.fullmatch(REPOSITORY, source.dataset) is not None
            if is_name and not Path(source.dataset).exists():
                names[source.dataset] = None
    return list(names)


def _result(card: ScoreCard, data: DataConfig) -> dict[str, Any]:
    """Return the scores of a test set in the form of a model index."""
    metrics = []
    for score in card.scores:
        value = round(score.value, num_decimals(score.name))
        metrics.append({"type": score.name, "value": value, "name": score.label})

    [dataset] = _hub_datasets([data.test.get(card.name)]) or [card.name]
    direction = f" {card.src_lang}-{card.tgt_lang}" if card.src_lang and card.tgt_lang else ""
    return {
        "task": {"type": "translation", "name": f"Translation{direction}"},
        "dataset": {"type": dataset, "name": card.name},
        "metrics": metrics,
    }


def dump_header(header: Mapping[str, Any]) -> str:
    """Return a header as YAML, without the lines around it."""
    text: str = yaml.safe_dump(dict(header), sort_keys=False, allow_unicode=True)
    return text.rstrip()


def with_ownership(card: str, ownership: Ownership, place: str = "README.md") -> str:
    """Return a model card whose header has what its owner states, after validating the header.

    Args:
        card: the text of the card.
        ownership: license, base model and data sets.
        place: name of the card in errors.

    Raise ConfigError with a line for each value that the Hub would refuse.
    """
    header = read_header(card, place)
    if ownership.license is not None:
        header["license"] = ownership.license
    if ownership.base_model is not None:
        header["base_model"] = ownership.base_model
    if ownership.datasets:
        known = header.get("datasets") or []
        header["datasets"] = list(dict.fromkeys([*known, *ownership.datasets]))
    validate_header(header, place)

    text = HEADER.sub("", card)
    if ownership.license is not None:
        text = NO_LICENSE.sub(f"**License:** {ownership.license}.\n\n", text)
    return f"---\n{dump_header(header)}\n---\n{text}"


def read_header(card: str, place: str) -> dict[str, Any]:
    """Return the header of a model card, whose languages are ISO 639 codes; raise ConfigError if it has none."""
    match = HEADER.match(card)
    try:
        header = yaml.safe_load(match[1]) if match is not None else None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{place}: its header is not YAML ({problem:.200}); correct it") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{place}: has no header between two lines of ---; export the model again")

    language = header.get("language")
    languages = [language] if isinstance(language, str) else language
    if isinstance(languages, list) and all(isinstance(code, str) for code in languages):
        header["language"] = iso_codes(languages)
    return header


def validate_header(header: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError with a line for each value that the Hub would refuse."""
    try:
        CardHeader.model_validate(header)
    except ValidationError as error:
        lines = []
        for mistake in error.errors():
            path = ".".join(map(str, mistake["loc"]))
            shown = "" if mistake["type"] == "missing" else f", not {mistake['input']!r:.60}"
            lines.append(f"{place}: {path}: {mistake['msg']}{shown}; correct it, because the Hub refuses such cards")
        raise ConfigError("\n".join(lines)) from error
