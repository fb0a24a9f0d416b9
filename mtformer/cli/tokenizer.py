"""`mtformer tokenizer`: train and use tokenizers."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtformer.cli.help import Command, Group, examples
from mtformer.cli.options import ConfigArgument, OverridesArgument, argument, optional
from mtformer.cli.output import echo, for_terminal
from mtformer.cli.paced_input import BlockLimits, is_pipe, open_stdin, paced_input
from mtformer.config.loading import load_config, resolve_paths
from mtformer.data.corpus.readers import decode_valid, read_line, require_text
from mtformer.errors import ConfigError, DataError
from mtformer.run_dir import RunDir
from mtformer.text.tags import with_tags
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

LINES_AT_ONCE = 1000
"""Number of lines after which the output is flushed."""
BYTES_AT_ONCE = 1 << 20
"""Number of bytes after which the output is flushed."""
MAX_DIGITS = 9
"""Number of digits of the longest word that can be a token id."""

app = typer.Typer(cls=Group, no_args_is_help=True)

Side = Literal["src", "tgt"]
ModelArgument = Annotated[
    Path, argument("Run directory, bundle, folder of tokenizers, or SentencePiece model.", "MODEL")
]
"""Where the tokenizer is."""
SideOption = Annotated[
    Side, optional("Which of two separate tokenizers to use: src or tgt (default: src).", "--side", metavar="NAME")
]
"""Which tokenizer is used."""


@app.command(cls=Command, epilog=examples("mtformer tokenizer train configs/demo.yaml tokenizer.vocab_size=4000"))
def train(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None,
        optional("New folder to write (default: tokenizers/NAME for NAME.yaml).", "--output", metavar="FOLDER"),
    ] = None,
) -> None:
    """Train SentencePiece models on the training data of a config, with the settings of its `tokenizer` section."""
    from mtformer.cli.progress import ELAPSED, alive
    from mtformer.experiment.prepare import make_tokenizers

    loaded = resolve_paths(load_config(config, overrides or []).config)
    folder = output or Path("tokenizers") / config.stem
    if not loaded.data.sources:
        raise ConfigError("data.train: no training data; name at least one source")
    _require_new(folder)

    with alive("train the tokenizer", bar_format=ELAPSED):
        make_tokenizers(loaded, folder)
    pair = TokenizerPair.load(folder)
    tokenizers = {"joint": pair.src} if pair.joint else {"source": pair.src, "target": pair.tgt}
    for name, tokenizer in tokenizers.items():
        echo(f"{folder}: {name}, {tokenizer.vocab_size} tokens, sha256 {tokenizer.sha256}")


@app.command(cls=Command, epilog=examples("mtformer tokenizer encode runs/demo < text.en > tokens.en"))
def encode(
    model: ModelArgument,
    ids: Annotated[bool, optional("Write token ids instead of tokens.", "--ids")] = False,
    side: SideOption = "src",
) -> None:
    """Split each line of stdin into tokens."""
    tokenizer = _load(model, side)

    def split(line: str, place: str) -> str:
        if ids:
            [token_ids] = tokenizer.encode([line])
            return " ".join(map(str, token_ids))
        return " ".join(tokenizer.pieces(line))

    _convert_lines(split)


@app.command(cls=Command, epilog=examples("mtformer tokenizer decode runs/demo < tokens.en"))
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
        token_ids = [_token_id(word, tokenizer.vocab_size, place) for word in words]
        [text] = tokenizer.decode([token_ids])
        return text

    _convert_lines(join)


def _token_id(word: str, vocab_size: int, place: str) -> int:
    """Return the token id that a word is; raise DataError if it is none."""
    is_number = word.isdecimal() and len(word) <= MAX_DIGITS
    if not is_number or int(word) >= vocab_size:
        raise DataError(
            f"{place}: '{word:.20}' is not a token id; ids are 0 to {vocab_size - 1} (text is decoded without --ids)"
        )
    return int(word)


def _require_new(folder: Path) -> None:
    """Raise DataError unless the folder is missing or empty."""
    if folder.is_file():
        raise DataError(f"{folder}: already exists; name another folder with --output")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: already exists; name another folder with --output, or delete it")


def _load(path: Path, side: Side) -> Tokenizer:
    """Return the tokenizer of one side of a run, bundle or folder, or a single SentencePiece model."""
    if not path.is_dir():
        return Tokenizer.load(path)
    run = RunDir(path)
    is_run = run.config.is_file()
    if is_run:
        RunDir.open(path)
    pair = TokenizerPair.load(run.tokenizer if run.tokenizer.is_dir() else path)
    if is_run:
        pair = with_tags(pair, load_config(run.config).config.data)
    return pair.src if side == "src" else pair.tgt


def _convert_lines(convert: Callable[[str, str], str]) -> None:
    """Write the converted lines of stdin to stdout; `convert` takes a line and its location for messages."""
    limits = BlockLimits(LINES_AT_ONCE, BYTES_AT_ONCE)
    lines = paced_input(_stdin_lines(), len, limits, is_piped=is_pipe(None))
    num_lines = 0
    while block := lines.take(LINES_AT_ONCE):
        if not num_lines:
            require_text("stdin", block[0])
        output = ""
        for number, line in enumerate(decode_valid("stdin", num_lines, block), start=num_lines + 1):
            # With byte fallback, a model can generate a line break, which would split the line.
            converted = convert(line, f"stdin:{number}").replace("\n", " ")
            output += f"{for_terminal(converted, sys.stdout)}\n"
        sys.stdout.buffer.write(output.encode("utf-8"))
        sys.stdout.buffer.flush()
        num_lines += len(block)


def _stdin_lines() -> Iterator[bytes]:
    """Yield the lines of stdin with their line ends."""
    file = open_stdin()
    while line := read_line(file, "stdin"):
        yield line
