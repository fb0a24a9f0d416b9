"""Reading, translating and scoring test sets."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mtformer.config.data import DataConfig, Source
from mtformer.config.schema import EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.data.corpus.sources import read_pairs
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError, log, warn_once
from mtformer.evaluation.card import EvalSet, ScoreCard, ScoredTranslations, write_card
from mtformer.evaluation.external import ExternalMetric, run_metric
from mtformer.evaluation.scores import (
    for_language,
    score,
    warn_of_tokenized_references,
    warn_of_tokenized_translations,
)


def source_set(name: str, source: Source, data: DataConfig) -> EvalSet:
    """Return a test set from the config, or from two files; raise DataError if it cannot be read or is empty.

    Args:
        name: name of the set.
        source: source of the sentences and their references.
        data: the `data` section, which has the language codes.
    """
    # Text in JSON files and data sets may contain line breaks; the saved texts have one line per sentence.
    sources = []
    references = []
    for src, tgt in read_pairs(source, data):
        sources.append(src.replace("\n", " "))
        references.append(tgt.replace("\n", " "))
    if not sources:
        raise DataError(f"test set '{name}': it has no lines; check its files")
    src_lang, tgt_lang = data.languages(source)
    return EvalSet(name, sources, [references], tgt_lang, src_lang)


def named_sets(sources: Mapping[str, Source], data: DataConfig) -> list[EvalSet]:
    """Return the test or dev sets of a config, in both directions if `data.both_directions` is set."""
    sets = []
    for name, source in sources.items():
        test = source_set(name, source, data)
        sets.append(test)
        if data.both_directions:
            sets.append(_reversed(test))
    return sets


def _reversed(test: EvalSet) -> EvalSet:
    """Return a test set in the other direction, named `NAME.TGT-SRC` after its languages."""
    return EvalSet(
        name=f"{test.name}.{test.tgt_lang}-{test.src_lang}",
        sources=test.references[0],
        references=[test.sources],
        tgt_lang=test.src_lang,
        src_lang=test.tgt_lang,
    )


def sacrebleu_set(testset: str, language_pair: str) -> EvalSet:
    """Return a test set that sacreBLEU downloads and caches, such as `wmt14/full` with `en-de`.

    Raises DataError if the test set or language pair does not exist, or cannot be downloaded.
    """
    from sacrebleu import get_reference_files, get_source_file
    from sacrebleu.dataset import DATASETS

    if testset not in DATASETS:
        raise DataError(f"sacreBLEU has no test set '{testset}'; `sacrebleu --list` lists the available ones")
    pairs = sorted(DATASETS[testset].langpairs)
    if language_pair not in pairs:
        raise DataError(f"sacreBLEU's {testset} has no '{language_pair}'; available: {', '.join(pairs)}")
    try:
        sources = _stripped_lines(get_source_file(testset, language_pair))
        references = [_stripped_lines(path) for path in get_reference_files(testset, language_pair)]
    except (Exception, SystemExit) as error:  # sacreBLEU exits on a damaged download, and raises bare Exceptions
        reason = " ".join(str(error).split())
        raise DataError(f"sacreBLEU cannot fetch {testset} {language_pair}: {reason}; check the network") from error

    name = f"{testset.replace('/', '_')}.{language_pair}"
    src, _, tgt = language_pair.partition("-")
    return EvalSet(name, sources, references, tgt, src)


def _stripped_lines(path: str) -> list[str]:
    return [line.strip() for line in read_lines(path)]


def evaluate(
    translator: Translator,
    test: EvalSet,
    config: EvaluationConfig,
    folder: Path,
    *,
    metrics: Sequence[ExternalMetric] = (),
    progress: Callable[[int], object] | None = None,
) -> ScoreCard:
    """Translate a test set, score the translations, and save them with a score card.

    Args:
        translator: it translates with its own `decoding` settings.
        test: the test set.
        config: settings of the metrics.
        folder: where the card and the texts are written.
        metrics: external metrics in addition to BLEU, chrF2++ and TER.
        progress: see `Translator.translate`.

    Raise DataError if an external metric fails; the card with all other scores has been written then.
    """
    is_tokenized = warn_of_tokenized_references(test.name, test.references, config)
    _warn_of_normalization(test, translator)
    translator_into_target = translator.into(test.tgt_lang)
    difference = translator_into_target.watch_input().judge(test.sources, "the source text")
    if difference is not None:
        log.warning("%s: %s", test.name, difference)

    start = time.perf_counter()
    translations = translator_into_target.translate(test.sources, progress=progress)
    hypotheses = [translation.text for translation in translations]
    seconds = time.perf_counter() - start
    if not is_tokenized:
        warn_of_tokenized_translations(test.name, hypotheses)

    first_reference, *more_references = test.references
    config = for_language(config, test.tgt_lang, first_reference)
    scores = score(hypotheses, first_reference, config, more_references=more_references)
    texts = {"src": test.sources, "hyp": hypotheses, "ref": first_reference}
    line_scores: dict[str, list[float]] = {}
    errors: list[str] = []
    for metric in metrics:
        try:
            external = run_metric(metric, texts)
        except DataError as error:  # the translations, which took long, are saved first
            errors.append(str(error))
            continue
        scores.append(external.score)
        if external.of_lines is not None:
            line_scores[metric.name] = external.of_lines

    result = ScoredTranslations(hypotheses, scores, config, seconds, line_scores)
    card = write_card(folder, test, result, translator)
    if errors:
        raise DataError("\n".join(f"{test.name}: {message}" for message in errors))
    return card


def _warn_of_normalization(test: EvalSet, translator: Translator) -> None:
    """Log a warning if the model cannot write some references, because its tokenizer changes them."""
    references = test.references[0]
    normalizer = translator.tokenizers.tgt.normalizer
    changes = normalizer.changes(references)
    examples = [(references[row], changed) for row, changed in changes.items()]
    message = normalizer.warning(len(changes), len(references), examples, "references")
    if message is not None:
        warn_once("normalization", "%s: %s", test.name, message)
