"""The last stages after training: confidence, scores on test sets, and comparison of a student with its teacher."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import default_weights
from mtformer.errors import log
from mtformer.evaluation.card import EvalSet, ScoreCard
from mtformer.evaluation.evaluate import evaluate, named_sets
from mtformer.experiment.calibrate import calibrate_on_dev
from mtformer.experiment.evaluate_run import OpenProgress, evaluate_run, no_progress
from mtformer.run_dir import RunDir

SHORTEST_TIME = 0.01
"""Resolution of the times in score cards, in seconds; the time of a few short lines is rounded to 0."""


def finish_training(run_dir: Path, config: Config, progress: OpenProgress = no_progress) -> dict[Path, ScoreCard]:
    """Fit the confidence of a finished run, and score its test sets.

    Args:
        run_dir: the run directory.
        config: the config of the command, which names the device and the metric of the best checkpoint.
        progress: shows the progress of each step.

    Returns:
        The score card of each folder with scores; none if the config of the run has no test set.
    """
    default = default_weights(RunDir(run_dir), config.training.best_metric)
    if default is not None and default.text:
        log.info("%s: commands use the %s", run_dir, default.text)

    run = RunDir.open(run_dir)
    data = load_config(run.config).config.data
    if not (data.dev or data.test):
        return {}
    translator = Translator.load(run_dir, device=config.training.device)
    calibrate_on_dev(run, translator, progress)
    if not data.test:
        return {}
    return evaluate_run(run, translator, named_sets(data.test, data), progress=progress)


@dataclass(frozen=True)
class ModelScores:
    """Scores of a teacher or a student on a test set."""

    test_set: str
    model: str
    """`teacher` or `student`."""
    card: ScoreCard
    lines_per_second: float
    num_parameters: int | None
    """Number of parameters; None if the backend does not reveal it, as with an export for CTranslate2."""


def finish_distilling(
    teachers: Sequence[Path],
    student: RunDir,
    config: Config,
    test_sets: Sequence[EvalSet],
    progress: OpenProgress = no_progress,
) -> list[ModelScores]:
    """Compare a trained student with its teacher on test sets, and fit its confidence.

    Both models translate with the `decoding` settings of the student. Its scores are saved in its run.

    Args:
        teachers: run directories or bundles; several form an ensemble.
        student: run of the student.
        config: config of the student.
        test_sets: test sets in the language of the student.
        progress: shows the progress of the calibration.

    Returns:
        The scores of the teacher on each test set, then those of the student.
    """
    teacher_model = _load_for_comparison(teachers, config)
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, test.name) for test in test_sets]
        scores = _model_scores("teacher", teacher_model, test_sets, folders, config)

    student_model = _load_for_comparison([student.path], config)
    folders = [student.evaluation(test.name) for test in test_sets]
    scores += _model_scores("student", student_model, test_sets, folders, config)
    calibrate_on_dev(student, student_model, progress)
    return scores


def _load_for_comparison(runs: Sequence[Path], config: Config) -> Translator:
    translator = Translator.load(runs, device=config.training.device)
    return translator.into(config.data.tgt_lang).with_decoding(config.decoding)


def _model_scores(
    model: str, translator: Translator, test_sets: Sequence[EvalSet], folders: Sequence[Path], config: Config
) -> list[ModelScores]:
    """Score a model on each test set, and save the score cards in the folders."""
    num_parameters = translator.engine.num_parameters
    scores = []
    for test, folder in zip(test_sets, folders, strict=True):
        card = evaluate(translator, test, config.evaluation, folder)
        speed = len(test.sources) / max(card.seconds, SHORTEST_TIME)
        scores.append(ModelScores(test.name, model, card, speed, num_parameters))
    return scores
