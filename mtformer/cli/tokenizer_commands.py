"""`mtformer tokenizer`."""

import sys
from collections.abc import Callable
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.options import OverridesArgument

if TYPE_CHECKING:
    from mtformer.text.tokenizer import Tokenizer

LINES_AT_ONCE = 1000

app = typer.Typer(help="Train and use tokenizers.", no_args_is_help=True)


class Side(str, Enum):
    """The language whose tokenizer is meant."""

    SRC = "src"
    TGT = "tgt"


ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="Run directory, bundle, folder of tokenizers, or SentencePiece model.",
        show_default=False,
    ),
]
SideOption = Annotated[Side, typer.Option("--side", help="Which one, where source and target have their own.")]


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the experiment.", show_default=False)],
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="The new folder; default: tokenizers/ and the config's name.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train SentencePiece on the training data of a config, as its section `tokenizer` says."""
    from mtformer.config.loading import load_config
    from mtformer.errors import ConfigError, DataError
    from mtformer.experiment.prepare import make_tokenizers
    from mtformer.text.tokenizer import TokenizerPair

    loaded = load_config(config, overrides or []).config
    folder = output or Path("tokenizers") / config.stem
    if not loaded.data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists already; name another folder with --output, or delete it")
    make_tokenizers(loaded, folder)
    pair = TokenizerPair.load(folder)
    sizes = [("joint", pair.src)] if pair.joint else [("source", pair.src), ("target", pair.tgt)]
    for name, tokenizer in sizes:
        typer.echo(f"{folder}: {name}, {tokenizer.vocab_size} pieces, sha256 {tokenizer.sha256}")


@app.command()
def encode(
    model: ModelArgument,
    ids: Annotated[bool, typer.Option("--ids", help="Write ids, not pieces.")] = False,
    side: SideOption = Side.SRC,
) -> None:
    """Split text from stdin into pieces, one line for one line."""
    tokenizer = _load(model, side)

    def split(line: str, place: str) -> str:
        return " ".join(map(str, tokenizer.encode([line])[0]) if ids else tokenizer.pieces(line))

    _filter(split)


@app.command()
def decode(
    model: ModelArgument,
    ids: Annotated[bool, typer.Option("--ids", help="Read ids, not pieces.")] = False,
    side: SideOption = Side.SRC,
) -> None:
    """Join pieces from stdin to text, one line for one line."""
    from mtformer.errors import DataError

    tokenizer = _load(model, side)

    def join(line: str, place: str) -> str:
        words = [word for word in line.split(" ") if word]
        if not ids:
            return tokenizer.decode_pieces(words)
        for word in words:
            if not word.isdecimal() or int(word) >= tokenizer.vocab_size:
                raise DataError(f"{place}: '{word}' is no id; ids are 0 to {tokenizer.vocab_size - 1}")
        return tokenizer.decode([[int(word) for word in words]])[0]

    _filter(join)


def _load(path: Path, side: Side) -> "Tokenizer":
    from mtformer.run_dir import RunDir
    from mtformer.text.tokenizer import Tokenizer, TokenizerPair

    if not path.is_dir():
        return Tokenizer.load(path)
    run = RunDir(path)
    if run.config.is_file():
        RunDir.open(path)
    pair = TokenizerPair.load(run.tokenizer if run.tokenizer.is_dir() else path)
    return pair.src if side is Side.SRC else pair.tgt


def _filter(convert: Callable[[str, str], str]) -> None:
    """Writes to stdout what `convert` makes of each line of stdin and its place; lines end at \\n only."""
    from mtformer.errors import DataError

    lines = enumerate(sys.stdin.buffer, start=1)
    while block := list(islice(lines, LINES_AT_ONCE)):
        converted = []
        for number, line in block:
            place = f"stdin:{number}"
            try:
                text = line.removesuffix(b"\n").decode("utf-8")
            except UnicodeDecodeError:
                raise DataError(f"{place}: not UTF-8") from None
            # With byte fallback a model can spell a line break, which would make two lines of one.
            converted.append(convert(text, place).replace("\n", " ") + "\n")
        sys.stdout.buffer.write("".join(converted).encode("utf-8"))
        sys.stdout.buffer.flush()
