"""`mtformer distill`: train a student on the translations of a teacher."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mtformer.cli import options
from mtformer.cli.options import optional
from mtformer.cli.output import echo, table_lines
from mtformer.cli.train import require_new_folder, require_one_process, run_training
from mtformer.errors import ConfigError
from mtformer.files import MADE_FROM
from mtformer.hub import local_path
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.config.schema import Config
    from mtformer.experiment.finish import ModelScores


def distill(
    runs: options.EnsembleArgument,
    *,
    config: Annotated[Path, optional("Config of the student, with its training data.", "--config", metavar="CONFIG")],
    mono: Annotated[
        list[Path] | None, optional("More text to translate; repeat for more files.", "--mono", metavar="FILE")
    ] = None,
    run_dir: Annotated[
        Path | None, optional("Run directory of the student (default: runs/NAME).", metavar="FOLDER")
    ] = None,
    on: options.OnOption = None,
) -> None:
    """Translate the training data of the student with a teacher, or with several as an ensemble.

    Of the five best translations of a line, the one most similar to the reference is used. The student trains on them
    and on its own data; then both models are compared on the test sets. The same command resumes an interrupted one.
    """
    from mtformer.cli.next_steps import echo_next_steps, steps_after_training
    from mtformer.cli.progress import TimedLines, line_progress
    from mtformer.cluster.workers import use_ray
    from mtformer.config.loading import load_config
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.evaluate import named_sets
    from mtformer.experiment.distill import distilled_config, load_teachers
    from mtformer.experiment.finish import finish_distilling

    runs = list(map(local_path, runs))
    run = RunDir(run_dir or Path("runs") / config.stem)
    require_one_process("distill")
    require_new_folder(run, run.corpus / MADE_FROM)
    student = load_config(config).config

    # What the comparison at the end needs is checked before hours of translation and training.
    if not student.data.test:
        raise ConfigError(f"{config}: no data.test; add a test set, on which teacher and student are compared")
    test_sets = named_sets(student.data.test, student.data)
    Translator.load(runs, device=student.training.device).with_decoding(student.decoding)

    with use_ray(on), TimedLines("translate") as lines:

        def start(num_lines: int) -> None:
            echo(*stages(student, num_lines), err=True)
            lines.start(num_lines)

        load = partial(load_teachers, runs, student)
        distilled = distilled_config(load, student, mono or [], run, lines.advance, start)
    run_training(distilled, run.path, ["mtformer", *sys.argv[1:]], "auto")

    scores = finish_distilling(runs, run, student, test_sets, line_progress)
    echo(*_score_table(scores))
    echo_next_steps(steps_after_training(run.path))


def stages(student: "Config", num_lines: int) -> list[str]:
    """Return what the command does, with the number of lines to translate and the limit of the training."""
    training = student.training
    if training.max_minutes is not None:
        limit = f"for at most {training.max_minutes:g} minutes (training.max_minutes), without the time of stage 1"
    elif training.max_epochs is not None:
        limit = f"for {training.max_epochs:g} epochs, at most {training.max_steps:,} steps"
    else:
        limit = f"for {training.max_steps:,} steps"

    first = f"translate {num_lines:,} lines with the teacher, and keep the good translations"
    if not num_lines:
        first = "translate with the teacher: complete"
    return [
        "distill has three stages; the same command resumes after an interruption:",
        f"  1. {first}",
        f"  2. train the student on the translations and its own data {limit}",
        f"  3. compare both on test sets: {', '.join(student.data.test)}",
    ]


def _score_table(scores: "list[ModelScores]") -> list[str]:
    rows = [["test set", "model", "BLEU", "chrF2++", "lines/s", "parameters"]]
    for row in scores:
        bleu, chrf, *_ = row.card.scores
        num_parameters = "-" if row.num_parameters is None else f"{row.num_parameters:,}"
        speed = f"{row.lines_per_second:,.0f}"
        rows.append([row.test_set, row.model, f"{bleu.value:.2f}", f"{chrf.value:.2f}", speed, num_parameters])
    return table_lines(rows, right=range(2, 6))
