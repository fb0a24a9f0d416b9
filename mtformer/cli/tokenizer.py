"""`mtformer tokenizer`: train and use tokenizers."""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtformer.cli.help import Command, Group
from mtformer.cli.options import ConfigArgument, OverridesArgument, argument, optional
from mtformer.cli.output import echo, for_terminal
from mtformer.config.loading import load_config, resolve_paths
from mtformer.data.corpus.readers import decode_valid, read_line
from mtformer.errors import ConfigError, DataError
from mtformer.run_dir import RunDir
from mtformer.text.tags import with_tags
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

LINES_AT_ONCE = 1000
MOST_DIGITS = 9

app = typer.Typer(cls=Group, help="Train and use tokenizers.", no_args_is_help=True)

Side = Literal["src", "tgt"]
ModelArgument = Annotated[Path, argument("Run directory, bundle, folder of tokenizers, or SentencePiece model.")]
SideOption = Annotated[Side, optional("Which of two separate tokenizers to use: src or tgt (default: src).", "--side")]


@app.command(cls=Command)
def train(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None, optional("New folder to write (default: tokenizers/NAME for NAME.yaml).", "--output")
    ] = None,
) -> None:
    """Train SentencePiece models on the training data of a config, with the settings of its `tokenizer` section."""
    from mtformer.cli.progress import ELAPSED, alive
    from mtformer.experiment.prepare import make_tokenizers

    loaded = resolve_paths(load_config(config, overrides or []).config)
    folder = output or Path("tokenizers") / config.stem
    if not loaded.data.sources:
        raise ConfigError("data.train: no training data; name at least one source")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        remedy = "" if folder.is_file() else ", or delete it"
        raise DataError(f"{folder}: already exists; name another folder with --output{remedy}")
    with alive("train the tokenizer", bar_format=ELAPSED):
        make_tokenizers(loaded, folder)
    pair = TokenizerPair.load(folder)
    sizes = [("joint", pair.src)] if pair.joint else [("source", pair.src), ("target", pair.tgt)]
    echo(*(f"{folder}: {name}, {one.vocab_size} tokens, sha256 {one.sha256}" for name, one in sizes))


@app.command(cls=Command)
def encode(
    model: ModelArgument,
    ids: Annotated[bool, optional("Write token ids instead of tokens.", "--ids")] = False,
    side: SideOption = "src",
) -> None:
    """Split each line of stdin into tokens."""
    tokenizer = _load(model, side)
    _convert_lines(lambda line, _: " ".join(map(str, tokenizer.encode([line])[0]) if ids else tokenizer.pieces(line)))


@app.command(cls=Command)
def decode(
    model: ModelArgument,
    ids: Annotated[bool, optional("Read token ids instead of tokens.", "--ids")] = False,
    side: SideOption = "src",
) -> None:
    """Join the tokens in each line of stdin into text."""
    tokenizer = _load(model, side)

    def join(line: str, place: str) -> str:
        words = [word for word in line.split(" ") if word]
        if not ids:
            return tokenizer.decode_pieces(words)
        for word in words:
            if not word.isdecimal() or len(word) > MOST_DIGITS or int(word) >= tokenizer.vocab_size:
                raise DataError(f"{place}: '{word:.20}' is not a token id; ids are 0 to {tokenizer.vocab_size - 1}")
        return tokenizer.decode([[int(word) for word in words]])[0]

    _convert_lines(join)


def _load(path: Path, side: Side) -> Tokenizer:
    if not path.is_dir():
        return Tokenizer.load(path)
    run = RunDir(path)
    if run.config.is_file():
        RunDir.open(path)
    pair = TokenizerPair.load(run.tokenizer if run.tokenizer.is_dir() else path)
    if run.config.is_file():
        pair = with_tags(pair, load_config(run.config).config.data)
    return pair.src if side == "src" else pair.tgt


def _convert_lines(convert: Callable[[str, str], str]) -> None:
    """Write the converted lines of stdin to stdout; `convert` takes a line and its location for messages."""
    first = 0
    while block := list(islice(iter(partial(read_line, sys.stdin.buffer, "stdin"), b""), LINES_AT_ONCE)):
        lines = decode_valid("stdin", first, block)
        # With byte fallback, a model can generate a line break, which would split the line.
        converted = [convert(line, f"stdin:{first + n}").replace("\n", " ") for n, line in enumerate(lines, start=1)]
        sys.stdout.buffer.write("".join(f"{for_terminal(line, sys.stdout)}\n" for line in converted).encode("utf-8"))
        sys.stdout.buffer.flush()
        first += len(block)
