"""`mtformer distill`."""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

from tqdm import tqdm

from mtformer.cli.options import EnsembleArgument, OnOption, optional
from mtformer.cli.output import echo, table_lines
from mtformer.cli.train import run_training
from mtformer.config.loading import load_config
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir
from mtformer.workers import use_ray


def distill(
    runs: EnsembleArgument,
    *,
    config: Annotated[Path, optional("Config of the student, with its training data.", "--config")],
    mono: Annotated[list[Path] | None, optional("More text to translate; repeat for more files.", "--mono")] = None,
    run_dir: Annotated[Path | None, optional("Run directory of the student (default: runs/NAME).")] = None,
    on: OnOption = None,
) -> None:
    """Train a student on translations of its training data by a teacher, or by several as an ensemble.

    Of the five best translations of a line, the one most similar to the reference is used. The student trains on them
    and on its own data; then both models are compared on the test sets. The same command resumes an interrupted one.
    """
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.evaluate import config_sets, evaluate
    from mtformer.experiment.distill import distilled_config, load_teachers

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("distill uses one process; run it without torchrun")
    student, run = load_config(config).config, RunDir(run_dir or Path("runs") / config.stem)
    if run.path.exists() and not run.corpus.is_dir():
        raise ConfigError(f"{run.path}: already exists; choose another folder for --run-dir")
    if not student.data.test:
        raise ConfigError(f"{config}: no data.test; add a test set, on which teacher and student are compared")
    sets = config_sets(student.data)
    with use_ray(on), tqdm(desc="translate", unit="line", disable=None, leave=False) as bar:
        distilled = distilled_config(partial(load_teachers, runs, student), student, mono or [], run, bar.update)
    run_training(distilled, run.path, ["mtformer", *sys.argv[1:]], "auto")
    rows = [["test set", "model", "BLEU", "chrF2++", "lines/s", "parameters"]]
    with tempfile.TemporaryDirectory() as folder:
        for name, models in (("teacher", runs), ("student", [run.path])):
            translator = Translator.load(models, device=student.training.device)
            translator = translator.into(student.data.tgt_lang).with_decoding(**student.decoding.model_dump())
            size = sum(parameter.numel() for model in translator.models for parameter in model.parameters())
            for one in sets:
                target = run.evaluation(one.name) if name == "student" else Path(folder, one.name)
                card = evaluate(translator, one, student.evaluation, target)
                scores = [f"{score.value:.2f}" for score in card.scores[:2]]
                rows.append([one.name, name, *scores, f"{len(one.sources) / card.seconds:,.0f}", f"{size:,}"])
    echo(*table_lines(rows, right=range(2, 6)))
    echo(f"translate with: mtformer translate {run.path}", err=True)
