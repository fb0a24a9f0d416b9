"""The confidence of translations, fitted to dev sets (see `mtformer.decoding.lines.confidence`)."""

import os
from collections.abc import Iterable, Sequence

from mtformer.config.data import DataConfig
from mtformer.config.loading import load_config
from mtformer.data.corpus.sources import files_of
from mtformer.decoding.lines.confidence import GOOD_CHRF, MIN_PAIRS, fit, write_calibration
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError, log
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.evaluate import named_sets, source_set
from mtformer.evaluation.scores import sentence_chrf
from mtformer.experiment.evaluate_run import OpenProgress, no_progress
from mtformer.run_dir import RunDir


def calibrate_run(
    run: RunDir, translator: Translator, dev_sets: Sequence[EvalSet], progress: OpenProgress = no_progress
) -> None:
    """Fit the confidence of the translations of a run to dev sets, and save it in the run.

    Args:
        run: run directory.
        translator: model of the run.
        dev_sets: the dev sets.
        progress: shows the progress of the translation.

    Raise DataError if the sets have too few sentences.
    """
    num_pairs = sum(len(dev.sources) for dev in dev_sets)
    if num_pairs < MIN_PAIRS:
        raise DataError(f"confidence needs at least {MIN_PAIRS} dev pairs, not {num_pairs}; add dev data")

    sources: list[str] = []
    translations: list[Translation] = []
    chrf: list[float] = []
    with progress("calibrate", num_pairs) as advance:
        for dev in dev_sets:
            in_language = translator.into(dev.tgt_lang)
            dev_translations = in_language.translate(dev.sources, token_scores=True, progress=advance)
            sources += dev.sources
            translations += dev_translations
            hypotheses = [translation.text for translation in dev_translations]
            chrf += sentence_chrf(hypotheses, dev.references[0])

    write_calibration(run.confidence, fit(sources, translations, chrf))
    num_good = sum(score >= GOOD_CHRF for score in chrf)
    percentage = 100 * num_good / len(chrf)
    log.info("confidence fitted to %d pairs; %.0f%% have a chrF2++ of at least %g", len(chrf), percentage, GOOD_CHRF)


def calibrate_on_dev(run: RunDir, translator: Translator, progress: OpenProgress = no_progress) -> None:
    """Fit the confidence of a run to its own dev data, unless it has one; if that is not possible, log why.

    For the arguments see `calibrate_run`.
    """
    if run.confidence.exists():  # it may be that of `eval --calibrate`
        return
    data = load_config(run.config).config.data
    sources = {str(number): source for number, source in enumerate(data.dev_sources)}
    if not sources:
        return
    try:
        calibrate_run(run, translator, named_sets(sources, data), progress)
    except DataError as error:
        log.info("no confidence was fitted: %s", error)
        return
    log.info(
        "these pairs also chose the weights, so the confidence may be slightly too high; to fit it to others: mtformer "
        "eval %s --calibrate --src FILE --ref FILE",
        run.path,
    )


def report_pairs_of_dev(run: RunDir, sets: Iterable[EvalSet]) -> None:
    """Log how many pairs of these sets are in the dev data of a run, whatever their files are called.

    Args:
        run: run directory, whose config names the dev data; only its files are read.
        sets: sets to which the confidence was fitted.
    """
    data = load_config(run.config).config.data
    try:
        dev_pairs = _pairs_of_dev(data)
    except DataError as error:
        log.info("it is unknown whether these pairs also chose the weights: %s", error)
        return

    num_pairs = 0
    num_shared = 0
    for given in sets:
        pairs = list(zip(given.sources, given.references[0], strict=True))
        num_pairs += len(pairs)
        num_shared += sum(pair in dev_pairs for pair in pairs)
    if num_shared > 0:
        log.warning(
            "%d of these %d pairs also chose the weights, because they are in the dev data of the run, so the "
            "confidence may be slightly too high; fit it to others",
            num_shared, num_pairs,
        )  # fmt: skip


def _pairs_of_dev(data: DataConfig) -> set[tuple[str, str]]:
    """Return the pairs in the dev files of a run, in both directions; raise DataError if a file cannot be read."""
    pairs: set[tuple[str, str]] = set()
    for source in data.dev_sources:
        for path in files_of(source):
            if not os.path.isfile(path):
                raise DataError(f"{path}: the file of the dev data is missing")
        if files_of(source):
            dev = source_set("dev", source, data)
            references = dev.references[0]
            pairs.update(zip(dev.sources, references, strict=True))
            pairs.update(zip(references, dev.sources, strict=True))
    return pairs
