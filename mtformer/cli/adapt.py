"""`mtformer adapt`: fine-tune a model on new text."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tqdm import tqdm

from mtformer.cli import options
from mtformer.cli.options import argument, optional
from mtformer.cli.output import echo, table_lines
from mtformer.cli.train import require_new_folder, require_one_process, run_training
from mtformer.errors import log
from mtformer.files import TEACHER
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.experiment.adapt import Point

CHOSEN_ON_DEV = (
    "The dev sets also chose the weights, so the scores of the chosen weights are slightly too high; to measure them "
    "on other text, use `mtformer eval` with --src and --ref."
)
"""Note below the scores."""


def adapt(
    run: Annotated[Path, argument("Run directory or bundle to adapt.", "RUN")],
    overrides: options.OverridesArgument = None,
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
        float, optional("Maximum loss of BLEU on the old dev set.", "--max-loss", metavar="X", min=0.0)
    ] = 0.3,
) -> None:
    """Repeat the training corpora of RUN in about 70 percent of each epoch.

    If they cannot be read, RUN translates the new sources instead. Then the weights between old and new that gain most
    chrF on the new dev set, and lose at most --max-loss on the old one, become the weights of NEW. The same command
    resumes an interrupted adaptation.
    """
    from mtformer.cli.next_steps import echo_next_steps, steps_after_training
    from mtformer.cli.progress import line_progress
    from mtformer.decoding.translator import Translator
    from mtformer.experiment.adapt import SHARES, adaptation_config, choose_weights
    from mtformer.experiment.calibrate import calibrate_on_dev

    new = RunDir(run_dir)
    require_one_process("adapt")
    require_new_folder(new, new.corpus / TEACHER)
    config = adaptation_config(run, train, dev, old_dev, new, overrides or [])
    run_training(config, run_dir, ["mtformer", *sys.argv[1:]], "auto")

    log.info("choosing weights between the old and the new ones; if this is interrupted, repeat the command")
    with tqdm(total=len(SHARES), desc="interpolate", disable=None, leave=False) as bar:
        points, chosen = choose_weights(new, config, max_loss, bar.update)
    calibrate_on_dev(new, Translator.load(run_dir, device=config.training.device), line_progress)

    echo(*_score_table(points[0], points[-1], chosen))
    echo(CHOSEN_ON_DEV)
    echo_next_steps(steps_after_training(run_dir))


def _score_table(before: "Point", after: "Point", chosen: "Point") -> list[str]:
    """Return the scores of the old weights, of the new ones, and of the chosen weights between them."""
    points = (before, after, chosen)
    rows = [["dev set, score", "before", "after", f"chosen ({chosen.share:.0%} of the change)"]]
    rows.append(["new, chrF2++", *(f"{point.new_chrf:.2f}" for point in points)])
    rows.append(["new, BLEU", *(f"{point.new:.2f}" for point in points)])
    if chosen.old is not None:
        rows.append(["old, BLEU", *(f"{point.old:.2f}" for point in points)])
    return table_lines(rows, right=[1, 2, 3])
