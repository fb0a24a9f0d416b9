"""A complete config for a new corpus: recommended sizes, and dev and test sets that are held out if there are none.

The sets are written beside the config, because a source of a config is a whole file.
"""

import filecmp
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import DataConfig, Source, TextFiles, TsvFile
from mtformer.config.languages import language_name
from mtformer.config.schema import Config
from mtformer.config.yaml_text import write_yaml
from mtformer.data.corpus.readers import tsv_cell
from mtformer.data.corpus.sources import file_states, read_pairs, require_unchanged
from mtformer.data.corpus.tmx import read_tmx
from mtformer.data.data_report import Columns, Pair
from mtformer.errors import ConfigError
from mtformer.experiment.adaptation_text import is_tmx
from mtformer.experiment.held_out import SetNumbers, choose_held_out
from mtformer.experiment.recommend import MAX_PAIRS, CorpusSize, measure, recommend, size_for
from mtformer.files import atomic_folder, naming_file, write_text
from mtformer.templating import render

TRAIN = "train"
"""Name of the training set."""
OTHER_SETS = ("dev", "test")
"""Names of the sets that are held out if there are none."""
READ_PAIRS = 10_000
"""Number of pairs that are read at once."""
EXISTS = "exists already, and is not replaced; move it away, or name another config"
"""End of the message about an output that exists."""


@dataclass(frozen=True)
class NewConfig:
    """A config that was written."""

    title: str
    """Names and codes of the languages."""
    num_pairs: str
    """Number of training pairs; the minimum for a large corpus."""
    folder: Path
    """Folder of the sets that were written."""
    sizes: dict[str, int]
    """Number of pairs of each set in the folder; empty if the config names the given files only."""
    held_out: list[str]
    """Names of the sets that are held out from the training text."""


def create_config(path: Path, sets: Mapping[str, Source], data: DataConfig) -> NewConfig:
    """Write a config with recommended values, and a folder with the sets that are held out.

    Args:
        path: file of the config; the name of the folder is that of the config with `_data`.
        sets: the corpus: the set `train`, and optionally `dev` and `test`.
        data: a `data` section with the languages.

    Raise ConfigError if the config, or a folder with other contents, exists; DataError if a file cannot be read.
    """
    folder = path.with_name(f"{path.stem}_data")
    if path.exists():
        raise ConfigError(f"{path}: {EXISTS}")

    states = file_states(sets.values())
    for name in OTHER_SETS:
        if name in sets:
            deque(_pairs(sets[name], data), maxlen=0)  # reports errors in any line
    missing = [name for name in OTHER_SETS if name not in sets]
    sizes: dict[str, int] = {}
    if missing or any(map(is_tmx, sets.values())):
        with naming_file(folder), atomic_folder(folder) as temporary:
            sizes = _write_sets(temporary, sets, data, missing)
            corpus = measure(_with_sets(data, sets, temporary, sizes))
            require_unchanged(sets.values(), states)
            # An interrupted call leaves the folder without the config, and the next call continues.
            if folder.exists() and not _are_equal(folder, temporary):
                raise ConfigError(f"{folder}: {EXISTS}")
    else:
        corpus = measure(_with_sets(data, sets, folder, sizes))

    config = _with_sets(data, sets, folder, sizes)
    new = NewConfig(_title(data), _num_pairs(corpus), folder, sizes, missing)
    write_text(path, _text(new, config, corpus))
    return new


def _with_sets(data: DataConfig, sets: Mapping[str, Source], folder: Path, written: Mapping[str, int]) -> Config:
    """Return a config with default values.

    Args:
        data: the languages.
        sets: the sets that the user names.
        folder: folder of the sets in `written`, which replace those in `sets`.
        written: the sets in the folder.
    """
    sources = {**sets, **{name: _written_files(folder, name, data) for name in written}}
    test = {"test": sources["test"]}
    values = {"train": [sources[TRAIN]], "dev": [sources["dev"]], "test": test}
    return Config(data=data.model_copy(update=values))


def _are_equal(folder: Path, other: Path) -> bool:
    """Return True if both are folders with the same files."""
    if not folder.is_dir():
        return False
    names = sorted(path.name for path in folder.iterdir())
    other_names = sorted(path.name for path in other.iterdir())
    _, mismatches, errors = filecmp.cmpfiles(folder, other, names, shallow=False)
    return names == other_names and not mismatches and not errors


def _title(data: DataConfig) -> str:
    names = f"{language_name(data.src_lang)}-{language_name(data.tgt_lang)}"
    return f"{names} ({data.src_lang}-{data.tgt_lang})"


def _num_pairs(corpus: CorpusSize) -> str:
    qualifier = "at least " if corpus.pairs == MAX_PAIRS else ""
    return f"{qualifier}{corpus.pairs:,}"


# ---- the sets -------------------------------------------------------------------------------------------------------


def _written_files(folder: Path, name: str, data: DataConfig) -> TextFiles:
    """Return the files of a set that is written."""
    src_suffix = data.src_lang
    tgt_suffix = data.tgt_lang
    if src_suffix == tgt_suffix:
        src_suffix = "src"
        tgt_suffix = "tgt"
    return TextFiles(src=str(folder / f"{name}.{src_suffix}"), tgt=str(folder / f"{name}.{tgt_suffix}"))


def _blocks(source: Source, data: DataConfig) -> Iterator[Columns]:
    """Yield the text of a source in blocks; each side of a pair is one line."""
    pairs = _pairs(source, data)
    while block := list(islice(pairs, READ_PAIRS)):
        src = [tsv_cell(src) for src, _ in block]
        tgt = [tsv_cell(tgt) for _, tgt in block]
        yield src, tgt


def _pairs(source: Source, data: DataConfig) -> Iterator[Pair]:
    if isinstance(source, TsvFile) and is_tmx(source):
        return read_tmx(source.tsv, data.src_lang, data.tgt_lang)
    return read_pairs(source, data)


def _write_sets(folder: Path, sets: Mapping[str, Source], data: DataConfig, missing: list[str]) -> dict[str, int]:
    """Write the sets that a config cannot name as they are; return the number of pairs of each.

    Args:
        folder: folder of the files.
        sets: the sets that the user names.
        data: their languages.
        missing: names of the sets that are held out from `train`.
    """
    sizes: dict[str, int] = {}
    for name, source in sets.items():
        read = partial(_blocks, source, data)
        if name == TRAIN and missing:
            numbers = choose_held_out(read, data, missing)
            sizes |= _write_divided(folder, read(), data, [TRAIN, *missing], numbers)
        elif is_tmx(source):
            sizes |= _write_whole(folder, read(), data, name)
    return sizes


def _write_divided(
    folder: Path, blocks: Iterable[Columns], data: DataConfig, names: Sequence[str], numbers: SetNumbers
) -> dict[str, int]:
    """Write the pairs of a corpus to several sets; return the number of pairs of each.

    Args:
        folder: folder of the files.
        blocks: the corpus.
        data: its languages.
        names: names of the sets.
        numbers: for each pair of the corpus, the position of its set in `names`; other pairs are not written.
    """
    sizes = dict.fromkeys(names, 0)
    start = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(_SetWriter(_written_files(folder, name, data))) for name in names]
        for src, tgt in blocks:
            block_numbers = numbers[start : start + len(src)]
            start += len(src)
            for number, (name, writer) in enumerate(zip(names, writers, strict=True)):
                rows = np.flatnonzero(block_numbers == number).tolist()
                writer.add([src[row] for row in rows], [tgt[row] for row in rows])
                sizes[name] += len(rows)
    return sizes


def _write_whole(folder: Path, blocks: Iterable[Columns], data: DataConfig, name: str) -> dict[str, int]:
    """Write a set; return its number of pairs by its name."""
    size = 0
    with _SetWriter(_written_files(folder, name, data)) as writer:
        for src, tgt in blocks:
            writer.add(src, tgt)
            size += len(src)
    return {name: size}


class _SetWriter(AbstractContextManager["_SetWriter"]):
    """Writes the two files of a set."""

    def __init__(self, files: TextFiles) -> None:
        self._src = open(files.src, "w", encoding="utf-8", newline="\n")  # noqa: SIM115  # closed with the context
        self._tgt = open(files.tgt, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def __exit__(self, *_: object) -> None:
        self._src.close()
        self._tgt.close()

    def add(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        """Write the lines of both sides."""
        self._src.writelines(f"{line}\n" for line in src)
        self._tgt.writelines(f"{line}\n" for line in tgt)


# ---- the text of the config -----------------------------------------------------------------------------------------


def _text(new: NewConfig, config: Config, corpus: CorpusSize) -> str:
    """Return the config as YAML, with a comment for each value."""
    values = recommend(corpus)
    values["training"]["seed"] = config.training.seed
    values["data"] = config.data.model_dump(include={"src_lang", "tgt_lang", TRAIN, *OTHER_SETS}, exclude_unset=True)
    lines = {section: _lines(section_values) for section, section_values in values.items()}
    epochs = size_for(corpus.pairs).epochs
    return render("config.yaml", new=new, epochs=epochs, **lines)


def _lines(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines of each key as YAML."""
    return {key: write_yaml({key: value}).rstrip("\n") for key, value in values.items()}
