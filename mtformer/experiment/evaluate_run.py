"""Scores of a run on test sets, saved in the run or in another folder."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from mtformer.config.loading import load_config
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import is_default
from mtformer.errors import DataError, log
from mtformer.evaluation.card import EvalSet, ScoreCard, read_card, score_differences
from mtformer.evaluation.evaluate import evaluate
from mtformer.evaluation.external import ExternalMetric
from mtformer.run_dir import RunDir

Advance = Callable[[int], object]
"""Function that counts translated lines."""
OpenProgress = Callable[[str, int], AbstractContextManager[Advance]]
"""Function of a description and the number of lines that shows the progress inside the returned context."""


@contextmanager
def no_progress(description: str, num_lines: int) -> Iterator[Advance]:
    """Show no progress."""
    yield lambda num_translated: None


def evaluate_run(
    run: RunDir,
    translator: Translator,
    test_sets: Sequence[EvalSet],
    output: Path | None = None,
    progress: OpenProgress = no_progress,
    metrics: Sequence[ExternalMetric] = (),
) -> dict[Path, ScoreCard]:
    """Translate and score test sets, and save the hypotheses and scores.

    Args:
        run: an opened run, whose `evaluation` settings are used.
        translator: model of this run, or an ensemble.
        test_sets: the test sets.
        output: folder for the results; None: that of the run, where `compare`, `runs` and `report` find them.
        progress: shows the progress of each test set.
        metrics: external metrics in addition to BLEU, chrF2++ and TER.

    Returns:
        The score card of each folder, in the order of the test sets.

    Raises:
        DataError: if a folder cannot be written, which is checked before the translation, which takes long; or if an
            external metric fails.
    """
    config = load_config(run.config).config
    if output is None:
        has_default_weights = is_default(run, translator.weights, config.training.best_metric)
        if not has_default_weights:
            log.warning(
                "%s: `compare`, `runs` and `report` show the scores of these weights now, not of the default ones; "
                "--output writes them elsewhere",
                run.path,
            )

    folders: list[Path] = []
    for test in test_sets:
        folder = run.evaluation(test.name) if output is None else output / test.name
        _require_writable(folder)
        folders.append(folder)

    cards: dict[Path, ScoreCard] = {}
    for test, folder in zip(test_sets, folders, strict=True):
        earlier = _earlier_card(folder)
        with progress(test.name, len(test.sources)) as advance:
            card = evaluate(translator, test, config.evaluation, folder, metrics=metrics, progress=advance)
        changes = [] if earlier is None else score_differences(earlier, card)
        if changes:
            log.warning("%s: replaced scores with other settings (%s)", folder, "; ".join(changes))
        cards[folder] = card
    return cards


def _require_writable(folder: Path) -> None:
    """Raise DataError if a folder that may not exist yet cannot be written."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    is_writable = existing.is_dir() and os.access(existing, os.W_OK)
    if not is_writable:
        raise DataError(f"{folder}: cannot be written; name another folder with --output")


def _earlier_card(folder: Path) -> ScoreCard | None:
    """Return the scores in a folder; None if there are none, or damaged ones."""
    with suppress(DataError):
        return read_card(folder)
    return None
