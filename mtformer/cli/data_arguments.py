"""What `mtformer data check` and `mtformer data clean` are given: a config, a run directory, or files."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from mtformer.config.data import Source
    from mtformer.config.schema import Config
    from mtformer.text.tokenizer import TokenizerPair

CONFIG_SUFFIXES = (".yaml", ".yml")

SrcLang = Annotated[
    str | None, typer.Option("--src-lang", help="With files: code of the source language.", show_default=False)
]
TgtLang = Annotated[
    str | None, typer.Option("--tgt-lang", help="With files: code of the target language.", show_default=False)
]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FOLDER",
        help="Tokenizers to count tokens with; default: the config's models, or the run's.",
        show_default=False,
    ),
]


class Asked(NamedTuple):
    """The config that is meant, and the run it is of, if it is one's."""

    config: "Config"
    run: Path | None = None


def is_override(word: str) -> bool:
    """section.key=value, and no file."""
    return re.match(r"[\w.-]+=", word) is not None and not os.path.exists(word)


def read_arguments(words: Sequence[str], src_lang: str | None, tgt_lang: str | None) -> Asked:
    """The config that the words name, or one made up for files, with the overrides among them.

    Raises:
        ConfigError: when they make no sense.
    """
    from mtformer.config.loading import load_config
    from mtformer.errors import ConfigError
    from mtformer.run_dir import RunDir

    overrides = [word for word in words if is_override(word)]
    what = [word for word in words if not is_override(word)]
    if not what:
        raise ConfigError(f"{words[0]}: name a config first, a run directory, or files")
    first = Path(what[0])
    if not first.is_dir() and first.suffix not in CONFIG_SUFFIXES:
        if src_lang is None or tgt_lang is None:
            raise ConfigError(f"{first}: no config (.yaml), so say by --src-lang and --tgt-lang what it is")
        languages = [f"data.{key}={json.dumps(code)}" for key, code in (("src_lang", src_lang), ("tgt_lang", tgt_lang))]
        config = load_config(os.devnull, [*languages, *overrides]).config
        data = config.data.model_copy(update={"train": [_source(what)]})
        return Asked(config.model_copy(update={"data": data}))
    if src_lang is not None or tgt_lang is not None:
        raise ConfigError("--src-lang and --tgt-lang are for files; a config names its languages itself")
    if len(what) > 1:
        raise ConfigError(f"{what[1]}: give one config; values that replace its own are written section.key=value")
    run = first if first.is_dir() else None
    return Asked(load_config(RunDir.open(run).config if run is not None else first, overrides).config, run)


def _source(files: Sequence[str]) -> "Source":
    from mtformer.config.data import JsonlFile, TextFiles, TsvFile
    from mtformer.errors import ConfigError

    if len(files) > 2:
        raise ConfigError(f"{files[2]}: too much; give a config, two parallel files, or one TSV or JSONL file")
    if len(files) == 2:
        return TextFiles(src=files[0], tgt=files[1])
    return JsonlFile(jsonl=files[0]) if ".jsonl" in Path(files[0]).suffixes else TsvFile(tsv=files[0])


def load_tokenizers(asked: Asked, folder: Path | None) -> "TokenizerPair | None":
    """Those in the folder, else those of the run, else the models that the config names; None where there are none.

    Raises:
        DataError: when they are not as they should be.
    """
    from mtformer.run_dir import RunDir
    from mtformer.text.tokenizer import Tokenizer, TokenizerPair

    if folder is not None or asked.run is not None:
        return TokenizerPair.load(folder if folder is not None else RunDir(asked.run or "").tokenizer)
    section = asked.config.tokenizer
    if section.src_model is None:
        return None
    src = Tokenizer.load(section.src_model)
    if section.joint:
        return TokenizerPair(src, src)
    return TokenizerPair(src, Tokenizer.load(section.tgt_model)) if section.tgt_model is not None else None
