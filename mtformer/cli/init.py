"""`mtformer init`: write a config for a corpus, or for the opposite direction of another config."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mtformer.cli.help import Command
from mtformer.cli.options import argument, optional
from mtformer.cli.output import echo
from mtformer.errors import ConfigError, log

if TYPE_CHECKING:
    from mtformer.config.data import DataConfig, Source
    from mtformer.experiment.new_config import NewConfig

CONFIG_SUFFIXES = (".yaml", ".yml")
"""Suffixes of configs."""
SET_OPTIONS = ("--dev", "--test")
"""Options with one or two files."""
WHOLE_CORPUS = re.compile(r"\.(tsv|jsonl|tmx)(\.\w+)?$|,", re.IGNORECASE)
"""End of the name of a file with both sides, or the comma between two files."""

SrcLang = Annotated[
    str | None, optional("Source language code (default: from the names of the files).", metavar="LANG")
]
"""Language of the source file."""
TgtLang = Annotated[
    str | None, optional("Target language code (default: from the names of the files).", metavar="LANG")
]
"""Language of the target file."""


class InitCommand(Command):
    """Command whose options `--dev` and `--test` are followed by one or two files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after repeating these options for their second file."""
        return super().parse_args(ctx, repeat_options(args))


def repeat_options(words: Sequence[str]) -> list[str]:
    """Replace `--dev SRC TGT` with `--dev SRC --dev TGT`; a file with both sides has no second one."""
    repeated: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 2 : number] if number >= 2 else []
        is_second_file = (
            len(before) == 2
            and before[0] in SET_OPTIONS
            and WHOLE_CORPUS.search(before[1]) is None
            and not word.startswith("-")
            and not _is_config(word)
        )
        if is_second_file:
            repeated.append(before[0])
        repeated.append(word)
    return repeated


def init(
    files: Annotated[
        list[str] | None,
        argument(
            "Two parallel files, or a TSV, JSONL or TMX file; then the config (default: LANG_LANG.yaml).",
            "FILE... [OUT.YAML]",
        ),
    ] = None,
    dev: Annotated[
        list[str] | None, optional("Dev set, one or two files (default: pairs are held out).", metavar="FILES")
    ] = None,
    test: Annotated[
        list[str] | None, optional("Test set, one or two files (default: pairs are held out).", metavar="FILES")
    ] = None,
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    reverse: Annotated[
        Path | None, optional("Write the config of the opposite direction of this config.", metavar="CONFIG")
    ] = None,
) -> None:
    """Choose sizes by the number of pairs, and explain each value in a comment.

    Without --dev or --test, up to 1,000 pairs are held out for each, and the sets are written to a folder beside the
    config. Existing files are not replaced.
    """
    words = files or []
    corpus = [word for word in words if not _is_config(word)]
    outputs = [Path(word) for word in words if _is_config(word)]
    if len(outputs) > 1:
        raise ConfigError(f"{outputs[1]}: a second config; give the files of the corpus, and one config to write")
    output = outputs[0] if outputs else None

    if reverse is not None:
        if corpus or dev or test or src_lang or tgt_lang:
            raise ConfigError("--reverse takes everything from the config; give only the config to write with it")
        _reverse(reverse, output)
        return
    _create(corpus, {"dev": dev or [], "test": test or []}, (src_lang, tgt_lang), output)


def _is_config(word: str) -> bool:
    return Path(word).suffix.lower() in CONFIG_SUFFIXES


# ---- a config for a corpus ------------------------------------------------------------------------------------------


def _create(
    files: Sequence[str],
    other_sets: dict[str, list[str]],
    languages: tuple[str | None, str | None],
    output: Path | None,
) -> None:
    """Write the config of a corpus, and print the next commands.

    Args:
        files: files of the training text.
        other_sets: files of the dev and the test set; an empty list if it is to be held out.
        languages: language codes that the user gave.
        output: the config; None: it is named after the languages.
    """
    from mtformer.cli.progress import ELAPSED, alive
    from mtformer.experiment.new_config import create_config

    data = _data(files, languages)
    sets = {"train": _source(files)}
    for name, set_files in other_sets.items():
        if set_files:
            _require_same_order(files, set_files, f"--{name}")
            sets[name] = _source(set_files)

    path = output or Path(f"{data.src_lang}_{data.tgt_lang}.yaml")
    with alive("read the corpus", bar_format=ELAPSED):
        new = create_config(path, sets, data)
    echo(f"{path}: {new.title}, {new.num_pairs} training pairs")
    if new.sizes:
        echo(f"{new.folder}: {_sizes(new)}")
    echo(*_next_commands(path))


def _data(files: Sequence[str], languages: tuple[str | None, str | None]) -> "DataConfig":
    """Return a `data` section with the languages, from the options or the names of the files."""
    import json
    import os

    from mtformer.config.loading import load_config
    from mtformer.experiment.file_languages import languages_of_files

    if not files:
        raise ConfigError("no corpus; give two parallel files, or one TSV, JSONL or TMX file")
    if len(files) > 2:
        raise ConfigError(f"{files[2]}: too many files; give two parallel files, or one TSV, JSONL or TMX file")

    named = languages_of_files(_split(files))
    src_lang = languages[0] or named[0]
    tgt_lang = languages[1] or named[1]
    if src_lang is None or tgt_lang is None:
        raise ConfigError(
            f"{' and '.join(files)}: the names do not say the languages, as in train.en and train.de; give them with "
            "--src-lang and --tgt-lang"
        )
    overrides = [f"data.src_lang={json.dumps(src_lang)}", f"data.tgt_lang={json.dumps(tgt_lang)}"]
    return load_config(os.devnull, overrides).config.data


def _split(files: Sequence[str]) -> list[str]:
    """Return the files of a set; `SRC,TGT` are two files."""
    is_pair = len(files) == 1 and files[0].count(",") == 1 and not Path(files[0]).exists()
    return files[0].split(",") if is_pair else list(files)


def _source(files: Sequence[str]) -> "Source":
    from mtformer.config.data import TextFiles
    from mtformer.experiment.adaptation_text import file_source

    if len(files) > 2:
        raise ConfigError(f"{files[2]}: too many files; give two parallel files, or one TSV, JSONL or TMX file")
    if len(files) == 2:
        return TextFiles(src=files[0], tgt=files[1])
    return file_source(files[0])


def _require_same_order(train: Sequence[str], files: Sequence[str], option: str) -> None:
    """Raise ConfigError if the names of the files say that they have the languages of `train` in opposite order."""
    from mtformer.experiment.file_languages import languages_of_files

    train_src, train_tgt = languages_of_files(_split(train))
    src, tgt = languages_of_files(_split(files))
    if src is not None and (src, tgt) == (train_tgt, train_src):
        raise ConfigError(
            f"{option} {' '.join(files)}: is {src}-{tgt}, but the training text is {tgt}-{src}; give the files in the "
            "same order"
        )


def _sizes(new: "NewConfig") -> str:
    """Return the names and sizes of the sets that were written, as a sentence."""
    sizes = [f"{name} {size:,}" for name, size in new.sizes.items()]
    held_out = f"; {' and '.join(new.held_out)} were held out, with all copies" if new.held_out else ""
    return f"{', '.join(sizes)} pairs{held_out}"


def _next_commands(path: Path) -> list[str]:
    """Return lines with the commands that follow, and what they are for."""
    name = shlex.quote(str(path))
    purposes = {
        f"mtformer data check {name}": "see errors, and what the filters remove",
        f"mtformer train {name} --dry-run": "see how long training takes",
        f"mtformer train {name}": "train; training.max_minutes=60 ends it after an hour",
    }
    width = max(map(len, purposes))
    return ["next:", *(f"  {command:<{width}}  {purpose}" for command, purpose in purposes.items())]


# ---- the opposite direction -----------------------------------------------------------------------------------------


def _reverse(config: Path, output: Path | None) -> None:
    """Write the opposite direction of a config."""
    from mtformer.config.loading import load_config
    from mtformer.config.reverse import reversed_values
    from mtformer.config.yaml_text import write_yaml
    from mtformer.files import write_text
    from mtformer.run_dir import RunDir

    source = RunDir.open(config, verified=False).config if config.is_dir() else config
    old = load_config(source).config
    values = reversed_values(old)
    src_lang = values["data"]["src_lang"]
    tgt_lang = values["data"]["tgt_lang"]
    path = output or _reversed_name(config, src_lang, tgt_lang)
    if path.exists():
        raise ConfigError(f"{path}: exists already, and is not replaced; name another config to write")

    title = f"# {src_lang}-{tgt_lang}: the opposite direction of {config}\n"
    write_text(path, title + write_yaml(values))
    for name, corpus in old.data.corpora.items():
        if corpus.tag is not None:
            log.warning(
                "data.corpora.%s has the tag %s; if its source was written by a model, the new model learns to write "
                "such text, so remove this corpus",
                name,
                corpus.tag,
            )
    echo(f"{path}: {src_lang}-{tgt_lang}", *_next_commands(path))


def _reversed_name(config: Path, src_lang: str, tgt_lang: str) -> Path:
    """Return the name of a config with its languages exchanged; only the languages if they are not in the name.

    Args:
        config: the config of the opposite direction.
        src_lang: source language of the new config.
        tgt_lang: target language of the new config.
    """
    old_direction = rf"(?<![^\W_]){re.escape(tgt_lang)}([-_]|2){re.escape(src_lang)}(?![^\W_])"
    stem, num_replaced = re.subn(old_direction, rf"{src_lang}\1{tgt_lang}", config.stem)
    return config.with_name(f"{stem}.yaml" if num_replaced else f"{src_lang}_{tgt_lang}.yaml")
