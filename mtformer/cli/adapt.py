"""`mtformer adapt`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from mtformer.cli.options import OverridesArgument, argument, optional
from mtformer.cli.output import echo, table_lines
from mtformer.cli.train import run_training
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir


def adapt(
    run: Annotated[Path, argument("Run directory or bundle to adapt.")],
    overrides: OverridesArgument = None,
    *,
    train: Annotated[list[str], optional("New text: TSV, JSONL, TMX or SRC,TGT; repeat for more.", metavar="FILE")],
    run_dir: Annotated[Path, optional("Run directory of the adapted model.", metavar="NEW")],
    dev: Annotated[
        str | None, optional("Dev set of the new text (default: hold out some pairs).", metavar="FILE")
    ] = None,
    old_dev: Annotated[
        str | None, optional("Dev set of the old text (default: those of RUN).", "--old-dev", metavar="FILE")
    ] = None,
    max_loss: Annotated[
        float, typer.Option("--max-loss", min=0.0, help="Maximum loss of BLEU on the old dev set.")
    ] = 0.3,
) -> None:
    """Fine-tune a model on new text without forgetting what it knows.

    Half of each epoch repeats the training corpora of RUN. If they cannot be read, RUN translates the new sources
    instead. Then the weights between old and new that gain most chrF on the new dev set, and lose at most --max-loss on
    the old one, become the weights of NEW. The same command resumes an interrupted adaptation.
    """
    from mtformer.experiment.adapt import SHARES, adaptation_config, choose_weights

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("adapt uses one process; run it without torchrun")
    new = RunDir(run_dir)
    if new.path.exists() and not new.corpus.is_dir():
        raise ConfigError(f"{run_dir}: already exists; choose another folder for --run-dir")
    config = adaptation_config(run, train, dev, old_dev, new, overrides or [])
    run_training(config, run_dir, ["mtformer", *sys.argv[1:]], "auto")
    with tqdm(total=len(SHARES), desc="interpolate", disable=None, leave=False) as bar:
        points, chosen = choose_weights(new, config, max_loss, bar.update)
    rows = [["dev set, score", "before", "after", f"chosen ({chosen.share:.0%} of the change)"]]
    shown = (points[0], points[-1], chosen)
    rows.append(["new, chrF2++", *(f"{one.new_chrf:.2f}" for one in shown)])
    rows.append(["new, BLEU", *(f"{one.new:.2f}" for one in shown)])
    if chosen.old is not None:
        rows.append(["old, BLEU", *(f"{one.old:.2f}" for one in shown)])
    echo(*table_lines(rows, right=[1, 2, 3]))
    echo(f"translate with: mtformer translate {run_dir}", err=True)
