"""`mtformer score`: the probability of given translations."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tqdm import tqdm

from mtformer.cli import options
from mtformer.cli.help import INPUT_OUTPUT
from mtformer.cli.line_files import parallel_lines
from mtformer.cli.options import ToOption, argument, optional
from mtformer.cli.output import for_terminal
from mtformer.errors import log

if TYPE_CHECKING:
    from mtformer.decoding.lines.translation import Scored


def score(
    run: Annotated[Path, argument("Run directory or bundle.", "RUN")],
    src: Annotated[Path, argument("Source file: plain, .gz, .xz, .zst or .bz2.", "SOURCE")],
    tgt: Annotated[Path, argument("File with one translation per source line.", "TARGET")],
    tokens: Annotated[
        bool, optional("Also print each token with its log-probability.", "--tokens", panel=INPUT_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, optional("Print one JSON object per line, with the tokens.", "--json", panel=INPUT_OUTPUT)
    ] = False,
    to: ToOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = None,
    checkpoint: options.CheckpointsOption = None,
) -> None:
    """Write the log-probability (in nats) of each line to stdout, and the perplexity to stderr."""
    from mtformer.decoding.translator import Translator

    totals = _Totals()
    with parallel_lines([src, tgt]) as lines:
        translator = Translator.load(run, checkpoint or None, device, precision).into(to)
        with tqdm(desc="score", unit="line", total=lines.total, disable=None, leave=False) as bar:
            for sources, targets in lines.blocks():
                for scored in translator.score(sources, targets, progress=bar.update):
                    line = _score_line(scored, tokens=tokens, as_json=as_json)
                    sys.stdout.write(for_terminal(line, sys.stdout) + "\n")
                    totals.add(scored)
                sys.stdout.flush()
    totals.report()


@dataclass
class _Totals:
    """Sums over the lines."""

    log_probability: float = 0.0
    num_lines: int = 0
    num_tokens: int = 0
    num_too_long: int = 0
    """Number of lines with more tokens than the model has positions, which have no score."""

    def add(self, scored: "Scored | None") -> None:
        """Add a line."""
        self.num_lines += 1
        if scored is None:
            self.num_too_long += 1
        else:
            self.log_probability += scored.log_probability
            self.num_tokens += len(scored.pieces)

    def report(self) -> None:
        """Log the sums and the perplexity."""
        if self.num_too_long:
            log.warning(
                "%d of %d lines have more tokens than the model has positions; their score is nan",
                self.num_too_long,
                self.num_lines,
            )
        if self.num_tokens:
            perplexity = math.exp(-self.log_probability / self.num_tokens)
            size = f"{self.num_lines:,} lines, {self.num_tokens:,} tokens"
            log.info(
                "%s, log-probability %.4f (natural), perplexity %.4f per token", size, self.log_probability, perplexity
            )


def _score_line(scored: "Scored | None", *, tokens: bool, as_json: bool) -> str:
    """Return the output line; `scored` is None for a line that is too long."""
    if as_json:
        return json.dumps(_json_values(scored), ensure_ascii=False)
    if scored is None:
        return "nan"

    line = f"{scored.log_probability:.6f}"
    if tokens:
        pairs = zip(scored.pieces, scored.token_log_probabilities, strict=True)
        texts = [f"{piece}:{log_probability:.4f}" for piece, log_probability in pairs]
        line += "\t" + " ".join(texts)
    return line


def _json_values(scored: "Scored | None") -> dict[str, Any]:
    if scored is None:
        return {"log_probability": None}
    return {
        "log_probability": scored.log_probability,
        "pieces": scored.pieces,
        "token_log_probabilities": [round(value, 6) for value in scored.token_log_probabilities],
    }
