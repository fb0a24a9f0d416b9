"""`mtformer score`."""

import json
import logging
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mtformer.cli.options import CheckpointsOption, DeviceOption, PrecisionOption, ToOption, argument, optional
from mtformer.cli.output import for_terminal

if TYPE_CHECKING:
    from mtformer.decoding.translation import Scored

log = logging.getLogger("mtformer")


def score(
    run: Annotated[Path, argument("Run directory or bundle.")],
    src: Annotated[Path, argument("Source file: plain, .gz, .xz or .zst.", metavar="SOURCE")],
    tgt: Annotated[Path, argument("File with one translation per source line.", metavar="TARGET")],
    tokens: Annotated[bool, optional("Also print each token with its log-probability.", "--tokens")] = False,
    as_json: Annotated[bool, optional("Print one JSON object per line, with the tokens.", "--json")] = False,
    to: ToOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    checkpoint: CheckpointsOption = None,
) -> None:
    """Print the log-probability (in nats) of given translations to stdout, and the perplexity to stderr."""
    from tqdm import tqdm

    from mtformer.cli.line_files import parallel_lines
    from mtformer.decoding.translator import Translator

    total, num_tokens, num_long = 0.0, 0, 0
    with parallel_lines([src, tgt]) as lines:
        translator = Translator.load(run, checkpoint or None, device, precision).into(to)
        with tqdm(desc="score", unit="line", total=lines.total, disable=None, leave=False) as bar:
            for sources, targets in lines.blocks():
                for one in translator.score(sources, targets, progress=bar.update):
                    sys.stdout.write(for_terminal(_line(one, tokens, as_json), sys.stdout) + "\n")
                    num_long += one is None
                    if one is not None:
                        total += one.log_probability
                        num_tokens += len(one.pieces)
                sys.stdout.flush()
        num_lines = lines.num_lines
    if num_long:
        log.warning(
            "%d of %d lines have more tokens than the model has positions; their score is nan", num_long, num_lines
        )
    if num_tokens:
        perplexity = math.exp(-total / num_tokens)
        log.info("%d lines, %d tokens, log-probability %.4f, perplexity %.4f", num_lines, num_tokens, total, perplexity)


def _line(one: "Scored | None", tokens: bool, as_json: bool) -> str:
    if one is None:
        return json.dumps({"log_probability": None}) if as_json else "nan"
    if as_json:
        scores = [round(value, 6) for value in one.token_log_probabilities]
        return json.dumps(
            {"log_probability": one.log_probability, "pieces": one.pieces, "token_log_probabilities": scores},
            ensure_ascii=False,
        )
    pieces = "".join(f" {p}:{v:.4f}" for p, v in zip(one.pieces, one.token_log_probabilities, strict=True))
    return f"{one.log_probability:.6f}" + (f"\t{pieces[1:]}" if tokens else "")
