"""Model cards of exports: languages, training data, size, scores, settings, and code that loads the export."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtformer.config import loading
from mtformer.config.data import DataConfig
from mtformer.config.languages import language_name
from mtformer.config.schema import Config
from mtformer.data.corpus.sources import files_of
from mtformer.decoding.loading import from_data_report, style_of_training
from mtformer.errors import DataError
from mtformer.evaluation.card import ScoreCard, read_card
from mtformer.export.card_header import dump_header, make_header
from mtformer.files import file_sha256, read_json
from mtformer.run_dir import SCORES, RunDir
from mtformer.templating import render
from mtformer.text.style import CASE, TOKENIZED, signs_of
from mtformer.text.tags import language_tag
from mtformer.weights import read_weights

LIBRARIES = {
    "bundle": "mtformer",
    "ctranslate2": "CTranslate2",
    "huggingface": "transformers",
    "argos": "Argos Translate",
}
"""Name of the library that loads each format of export."""


@dataclass(frozen=True)
class ExportDetails:
    """Properties of an export that its model card shows."""

    format: str
    """`bundle`, `ctranslate2`, `huggingface` or `argos`."""
    name: str
    """Name of the folder or file."""
    vocab_sizes: list[int]
    """Distinct sizes of the vocabularies."""
    quantization: str | None = None
    """Type of the stored weights; None: float32."""
    vocabulary_map: bool = False
    """True if the search uses a vocabulary map."""


def model_card(run: RunDir, config: Config, weights: Sequence[Path], details: ExportDetails) -> str:
    """Return the model card of an export, with only the scores of the exported weights.

    Args:
        run: run directory or bundle that is exported.
        config: its config.
        weights: exported weight files.
        details: properties of the export.

    Raise DataError if a score card, or the table in exam.json, is damaged.
    """
    data = config.data
    weight_hashes = [file_sha256(path) for path in weights]
    tensors = read_weights(weights[0])
    num_parameters = sum(tensor.numel() for tensor in tensors.values())

    tag = language_tag(data.tgt_lang) if data.language_tags == "source" else None
    shown_config = loading.without_side_outputs(loading.without_files(config))
    settings = loading.config_diff(loading.load_defaults().config, shown_config)
    cards = _score_cards(run, weight_hashes)
    library = LIBRARIES[details.format]
    header = make_header(details.name, library.lower().replace(" ", "-"), data, cards)

    return render(
        "card.md",
        **asdict(details),
        config=config,
        library=library,
        header=dump_header(header),
        language_name=language_name,
        tag=tag,
        corpora=_corpus_names(data),
        num_pairs=from_data_report(run, "kept"),
        unusual_text=_unusual_text(run),
        num_parameters=num_parameters,
        cards=cards,
        exam=_exam_rows(run, weight_hashes),
        settings=settings,
    )


def _corpus_names(data: DataConfig) -> list[str]:
    """Return the names of the training files and datasets, without the folders of absolute paths."""
    names: list[str] = []
    for source in data.sources:
        names += files_of(source) or [getattr(source, "dataset", "")]
    return [Path(name).name if Path(name).is_absolute() else name for name in names]


def _unusual_text(run: RunDir) -> str:
    """Return which training text is tokenized or in one case, such as `German sources with no capital letters`."""
    style = style_of_training(run)
    if style is None:
        return ""
    texts: list[str] = []
    for counts_by_language, side in ((style.src, "sources"), (style.tgt, "targets")):
        for language, counts in counts_by_language.items():
            signs = [sign.value for sign in signs_of(counts) if sign in (*TOKENIZED, *CASE)]
            if signs:
                texts.append(f"{language_name(language)} {side} with {', '.join(signs)}")
    return "; ".join(texts)


def _score_cards(run: RunDir, weight_hashes: list[str]) -> list[ScoreCard]:
    """Return the score cards of exactly these weights."""
    card_files = sorted(run.evaluations.glob(f"*/{SCORES}"))
    all_cards = [read_card(path.parent) for path in card_files]  # also refuses damaged ones
    if len(weight_hashes) != 1:
        return []  # the mean of several checkpoints, and their ensemble, have the same files

    cards = []
    for card in all_cards:
        card_hashes = [checkpoint.sha256 for checkpoint in card.checkpoints]
        if card_hashes == weight_hashes:
            cards.append(card)
    return cards


def _exam_rows(run: RunDir, weight_hashes: list[str]) -> list[dict[str, Any]]:
    """Return the rows of exam.json for these weights; an empty list if it has none, as it may compare several runs."""
    if not run.exam.exists():
        return []
    try:
        for exam in read_json(run.exam)["exams"]:
            if exam.get("weights", weight_hashes) == weight_hashes:
                return [{"row": name, **row} for name, row in exam["rows"].items()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{run.exam}: not a table with rows ({error}); write it again, or move it away") from error
    return []
