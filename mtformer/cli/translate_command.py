"""`mtformer translate`: a filter, one line out for one line in."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from mtformer.cli.eval_command import CHECKPOINT_HELP, PRECISION_HELP

if TYPE_CHECKING:
    from mtformer.decoding.translator import Translator

LINES_AT_ONCE = 2000
"""Lines that are read, sorted by length and translated together; memory is bounded by them."""


def translate(
    run: Annotated[Path, typer.Argument(help="Run directory or bundle.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--input", help="File to translate; default: stdin.", show_default=False)
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="File to write; default: stdout.", show_default=False)
    ] = None,
    beam_size: Annotated[int | None, typer.Option(min=1, help="1: greedy.", show_default=False)] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0.0, help="alpha in log-probability / length^alpha.", show_default=False)
    ] = None,
    max_length_ratio: Annotated[
        float | None, typer.Option(help="Most target tokens, in source tokens (plus 10).", show_default=False)
    ] = None,
    min_length_ratio: Annotated[
        float | None, typer.Option(help="Fewest target tokens, in source tokens.", show_default=False)
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Source tokens x beams of a batch.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help=PRECISION_HELP)] = "fp32",
    checkpoint: Annotated[str | None, typer.Option(help=CHECKPOINT_HELP, show_default=False)] = None,
) -> None:
    """Translate lines from stdin (or a file) to stdout (or a file); interactive at a terminal."""
    from mtformer.decoding.translator import Translator, override

    translator = Translator.load(run, checkpoint, device, precision)
    translator.decoding = override(
        translator.decoding,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length_ratio=max_length_ratio,
        min_length_ratio=min_length_ratio,
        batch_tokens=batch_tokens,
    )
    if source is None and target is None and sys.stdin.isatty():
        _converse(translator)
    else:
        _filter(translator, source, target)


def _converse(translator: "Translator") -> None:
    """A line typed, a translation shown, until the end of input."""
    typer.echo("type a sentence and press Enter; Ctrl-D ends", err=True)
    for line in sys.stdin:
        typer.echo(translator.translate([line.rstrip("\n")])[0].text)


def _filter(translator: "Translator", source: Path | None, target: Path | None) -> None:
    """As many lines out as in; a file appears under its name only when it is whole."""
    from mtformer.errors import DataError
    from mtformer.rundir import atomic_file

    if source is not None and not source.is_file():
        raise DataError(f"{source}: no such file")
    if target is None:
        with _opened(source) as lines:
            _run(translator, lines, sys.stdout.buffer)
        return
    with atomic_file(target) as temporary, temporary.open("wb") as out, _opened(source) as lines:
        _run(translator, lines, out)


def _opened(source: Path | None) -> IO[bytes]:
    return sys.stdin.buffer if source is None else source.open("rb")


def _run(translator: "Translator", lines: IO[bytes], out: IO[bytes]) -> None:
    from tqdm import tqdm

    with tqdm(desc="translate", unit="line", disable=None, leave=False) as bar:
        for block in _blocks(lines):
            for translation in translator.translate(block, progress=bar.update):
                out.write(translation.text.encode("utf-8") + b"\n")
            out.flush()


def _blocks(lines: IO[bytes]) -> Iterator[list[str]]:
    """Blocks of lines, which end at \\n only; bytes that are no UTF-8 are counted and become U+FFFD."""
    import itertools
    import logging

    num_bad = 0
    while block := list(itertools.islice(lines, LINES_AT_ONCE)):
        texts = [line.rstrip(b"\n").decode("utf-8", "replace") for line in block]
        num_bad += sum(
            "\ufffd" in text and b"\xef\xbf\xbd" not in line for text, line in zip(texts, block, strict=True)
        )
        yield texts
    if num_bad:
        logging.getLogger("mtformer").warning("%d lines were not UTF-8; what was not became U+FFFD", num_bad)
