"""`mtformer data clean`."""

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.data_arguments import (
    SrcLang,
    TgtLang,
    TokenizerFolder,
    is_override,
    load_tokenizers,
    read_arguments,
)
from mtformer.cli.options import PRECISION_HELP

if TYPE_CHECKING:
    from mtformer.config.data import DataConfig
    from mtformer.data.check.clean import Rows, Scoring
    from mtformer.data.report import Columns, DataReport
    from mtformer.decoding.translator import Translator

log = logging.getLogger("mtformer")


def clean(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG_OR_FILES... OUT [SECTION.KEY=VALUE]...",
            help="A config or run directory, two parallel files, or one TSV or JSONL file; then the new folder.",
            show_default=False,
        ),
    ],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    gz: Annotated[bool, typer.Option("--gz", help="Write texts as .gz.")] = False,
    score_with: Annotated[
        list[Path] | None,
        typer.Option(
            "--score-with",
            metavar="RUN",
            help="Score what is kept by this model; given twice, the second translates back: both must agree.",
            show_default=False,
        ),
    ] = None,
    keep_share: Annotated[
        float | None,
        typer.Option("--keep-share", help="Keep only this share of the scored pairs, the best.", show_default=False),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Keep only pairs of at least this score.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Of scoring: auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="Of scoring. " + PRECISION_HELP)] = "fp32",
) -> None:
    """Write the training pairs that the filters keep, those they remove with the reason, and a report.

    Scores are log-probabilities per token; of two models exp(-(|H1 - H2| + (H1 + H2) / 2)), H being minus that.
    """
    from tqdm import tqdm

    from mtformer.data.check.clean import clean as clean_corpus
    from mtformer.data.store.pipeline import Pipeline
    from mtformer.errors import ConfigError

    plain = [word for word in words if not is_override(word)]
    if len(plain) < 2:
        raise ConfigError("name what is to be cleaned, and then the folder to write")
    folder = Path(plain.pop())
    asked = read_arguments([*plain, *filter(is_override, words)], src_lang, tgt_lang)
    data = asked.config.data
    languages, texts = _corpus(data)
    tokenizers = load_tokenizers(asked, tokenizer)
    scoring = _scoring(score_with or [], languages, keep_share, min_score, device, precision)
    if tokenizers is None:
        log.info("no tokenizer, so max_tokens and max_length_ratio are not applied; name one with --tokenizer")
    with tqdm(desc="clean", unit="pair", unit_scale=True, disable=None, leave=False) as bar:
        report = clean_corpus(
            texts,
            Pipeline(data.filters, languages, tokenizers),
            folder,
            scoring=scoring,
            is_compressed=gz,
            num_workers=data.num_workers or os.cpu_count() or 1,
            progress=bar.update,
        )
    _tell(report, folder, data.filters.max_filtered_share, tokenizers is not None)


def _corpus(data: "DataConfig") -> "tuple[tuple[str, str], Iterator[Columns]]":
    """Return the languages and the text of data.train."""
    from mtformer.data.corpus.sources import describe, languages, read_columns, require_files
    from mtformer.data.store.pipeline import PAIRS_AT_ONCE
    from mtformer.errors import ConfigError

    if not data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    first = languages(data.train[0], data)
    for source in data.train:
        if languages(source, data) != first:
            raise ConfigError(
                f"{describe(source)}: is {'-'.join(languages(source, data))} and not {'-'.join(first)} as the first of "
                "data.train; clean one direction at a time, by its files"
            )
    if data.corpora:
        log.info("only data.train is cleaned; clean the files of data.corpora (%s) too", ", ".join(data.corpora))
    require_files(data.train)
    return first, chain.from_iterable(read_columns(source, data, PAIRS_AT_ONCE) for source in data.train)


def _scoring(
    runs: Sequence[Path],
    languages: tuple[str, str],
    keep_share: float | None,
    min_score: float | None,
    device: str,
    precision: str,
) -> "Scoring | None":
    """Loads the models; None when none is named."""
    from mtformer.errors import ConfigError

    if not runs:
        if keep_share is not None or min_score is not None:
            raise ConfigError("--keep-share and --min-score go by scores; name a model with --score-with")
        return None
    if len(runs) > 2:
        raise ConfigError("--score-with: give one run, or two, the second of which translates back")
    if keep_share is not None and not 0 < keep_share <= 1:
        raise ConfigError(f"--keep-share {keep_share:g}: is a share, above 0 and at most 1")
    from mtformer.data.check.clean import Scoring

    directions = (languages, (languages[1], languages[0]))
    translators = [_load(run, one, device, precision) for run, one in zip(runs, directions, strict=False)]
    return Scoring(lambda texts: _rows(translators, texts), keep_share, min_score)


def _load(run: Path, languages: tuple[str, str], device: str, precision: str) -> "Translator":
    from mtformer.decoding.translator import Translator
    from mtformer.errors import ConfigError

    translator = Translator.load(run, None, device, precision)
    data = translator.data
    assert data is not None
    has_one = len(data.target_languages) == 1
    if has_one and (data.src_lang, data.tgt_lang) != languages:
        raise ConfigError(f"{run}: translates {data.src_lang}-{data.tgt_lang}, not {'-'.join(languages)}")
    return translator.into(languages[1])


def _rows(translators: "Sequence[Translator]", texts: "Columns") -> "Rows":
    """Return for each pair the score and, if there are two models, the log-probability per token of each."""
    import numpy as np

    from mtformer.data.check.clean import dual_scores

    found = []
    for translator, (sources, targets) in zip(translators, (texts, texts[::-1]), strict=False):
        scored = translator.score(sources, targets)
        found.append([one.log_probability / len(one.pieces) if one is not None else np.nan for one in scored])
    columns = np.array(found)
    if len(columns) == 2:
        columns = np.stack([dual_scores(columns[0], columns[1]), *columns])
    rows: Rows = columns.T
    return rows


def _tell(report: "DataReport", folder: Path, max_filtered_share: float, has_tokens: bool) -> None:
    for line in report.lines():
        if has_tokens or " tokens " not in line:
            log.info("%s", line)
    if not report.kept:
        log.warning("%s: not one pair is kept; see removed.tsv there, and data.filters", folder)
    elif report.left_out_share > max_filtered_share:
        log.warning("more than data.filters.max_filtered_share %g is removed; see removed.tsv", max_filtered_share)
    log.info("written: %s", folder)
