"""Test sets: reading, translation and scoring."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtformer.config.data import DataConfig, Source
from mtformer.config.schema import EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.data.corpus.sources import languages, read_pairs
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError
from mtformer.evaluation.card import EvalSet, ScoreCard, write_card
from mtformer.evaluation.scores import METRICS, MetricName, for_language, looks_tokenized, score

if TYPE_CHECKING:
    from mtformer.evaluation.comet import Comet

log = logging.getLogger("mtformer")


def source_set(name: str, source: Source, data: DataConfig) -> EvalSet:
    """Return a test set of the config, or of two files; raise DataError if it cannot be read or is empty."""
    # A text of a JSON file or a data set may hold line breaks; the texts that are kept have one line each.
    pairs = [(src.replace("\n", " "), tgt.replace("\n", " ")) for src, tgt in read_pairs(source, data)]
    if not pairs:
        raise DataError(f"test set '{name}': it has no lines")
    src_lang, tgt_lang = languages(source, data)
    return EvalSet(name, [src for src, _ in pairs], [[tgt for _, tgt in pairs]], tgt_lang, src_lang)


def config_sets(data: DataConfig) -> list[EvalSet]:
    """Return the test sets of a config; with `data.both_directions`, in both directions."""
    sets = []
    for name, source in data.test.items():
        one = source_set(name, source, data)
        sets.append(one)
        if data.both_directions:
            src, tgt = languages(source, data)
            sets.append(EvalSet(f"{name}.{tgt}-{src}", one.references[0], [one.sources], src, tgt))
    return sets


def sacrebleu_set(testset: str, language_pair: str) -> EvalSet:
    """Return a test set that sacreBLEU downloads and caches, such as `wmt14/full` and `en-de`.

    Raises:
        DataError: if the set or the language pair does not exist, or cannot be downloaded.
    """
    from sacrebleu import get_reference_files, get_source_file
    from sacrebleu.dataset import DATASETS

    if testset not in DATASETS:
        raise DataError(f"sacreBLEU has no test set '{testset}'; `sacrebleu --list` shows those it has")
    pairs = sorted(DATASETS[testset].langpairs)
    if language_pair not in pairs:
        raise DataError(f"sacreBLEU's {testset} has no '{language_pair}'; it has {', '.join(pairs)}")
    try:
        files = [get_source_file(testset, language_pair), *get_reference_files(testset, language_pair)]
        sources, *references = ([line.strip() for line in read_lines(path)] for path in files)
    except (Exception, SystemExit) as error:  # sacreBLEU exits on a damaged download and raises bare Exceptions.
        reason = " ".join(str(error).split())
        raise DataError(f"sacreBLEU could not fetch {testset} {language_pair}: {reason}; check the network") from error
    src, _, tgt = language_pair.partition("-")
    return EvalSet(f"{testset.replace('/', '_')}.{language_pair}", sources, references, tgt, src)


def evaluate(
    translator: Translator,
    test: EvalSet,
    config: EvaluationConfig,
    folder: Path,
    *,
    metrics: Sequence[MetricName] = METRICS,
    progress: Callable[[int], object] | None = None,
    comet: "Comet | None" = None,
) -> ScoreCard:
    """Translate a test set with the translator's `decoding` settings, score it, and return the card saved in `folder`.

    Args:
        translator: the model with its decoding settings.
        test: the test set.
        config: the `evaluation` section.
        folder: folder for the score card and the texts; see `mtformer.evaluation.card`.
        metrics: scores to compute.
        progress: as in `Translator.translate`.
        comet: an additional score, with the first reference.
    """
    if any(looks_tokenized(references) for references in test.references):
        log.warning("%s: the references look tokenized; scores against them cannot be compared with others", test.name)
    start = time.perf_counter()
    found = translator.into(test.tgt_lang).translate(test.sources, progress=progress)
    hypotheses = [translation.text for translation in found]
    seconds = time.perf_counter() - start
    config = for_language(config, test.tgt_lang)
    scores = score(hypotheses, test.references[0], config, metrics, test.references[1:])
    if comet is not None:
        scores.append(comet.score(test.sources, hypotheses, test.references[0]))
    return write_card(folder, test, hypotheses, scores, config, translator, seconds)
