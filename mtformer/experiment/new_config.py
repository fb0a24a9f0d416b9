"""A complete config for a new corpus: recommended sizes, and dev and test sets that are held out if there are none.

The sets are written beside the config, because a source of a config is a whole file.
"""

import filecmp
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
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
from mtformer.data.filters.duplicates import Keys
from mtformer.errors import ConfigError
from mtformer.experiment.adaptation_text import is_tmx
from mtformer.experiment.held_out import choose_held_out, pair_keys
from mtformer.experiment.recommend import MAX_PAIRS, CorpusSize, measure, recommend, size_for
from mtformer.files import atomic_folder, write_text
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
        with atomic_folder(folder) as temporary:
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
            held_out = choose_held_out(read, data, missing)
            sizes |= _write_training_set(folder, read(), data, held_out)
        elif is_tmx(source):
            sizes[name] = _write_set(_written_files(folder, name, data), read())
    return sizes


class _SetWriter(AbstractContextManager["_SetWriter"]):
    """Writes the two files of a set."""

    def __init__(self, files: TextFiles) -> None:
        self._src = open(files.src, "w", encoding="utf-8", newline="\n")  # noqa: SIM115  # closed with the context
        self._tgt = open(files.tgt, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        self.size = 0
        """Number of pairs."""

    def __exit__(self, *_: object) -> None:
        self._src.close()
        self._tgt.close()

    def add(self, texts: Columns, rows: Iterable[int]) -> None:
        """Write some rows of two columns."""
        src, tgt = texts
        for row in rows:
            self._src.write(f"{src[row]}\n")
            self._tgt.write(f"{tgt[row]}\n")
            self.size += 1


def _write_set(files: TextFiles, blocks: Iterable[Columns]) -> int:
    """Write all pairs; return their number."""
    with _SetWriter(files) as writer:
        for texts in blocks:
            writer.add(texts, range(len(texts[0])))
    return writer.size


def _write_training_set(
    folder: Path, blocks: Iterable[Columns], data: DataConfig, held_out: Mapping[str, Keys]
) -> dict[str, int]:
    """Write each pair that is held out once to its set, and all other pairs to the training set; return the sizes."""
    writers: dict[str, _SetWriter] = {}
    new_keys = {name: set(keys.tolist()) for name, keys in held_out.items()}
    with ExitStack() as stack:
        for name in (TRAIN, *held_out):
            writer = _SetWriter(_written_files(folder, name, data))
            writers[name] = stack.enter_context(writer)

        for texts in blocks:
            keys = pair_keys(texts)
            is_left = np.ones(len(keys), dtype=np.bool_)
            for name, set_keys in held_out.items():
                is_held_out = np.isin(keys, set_keys)
                is_left &= ~is_held_out
                for row in np.flatnonzero(is_held_out).tolist():
                    key = int(keys[row])
                    if key in new_keys[name]:
                        new_keys[name].remove(key)
                        writers[name].add(texts, [row])
            writers[TRAIN].add(texts, np.flatnonzero(is_left).tolist())
    return {name: writer.size for name, writer in writers.items()}


# ---- the text of the config -----------------------------------------------------------------------------------------


def _text(new: NewConfig, config: Config, corpus: CorpusSize) -> str:
    """Return the config as YAML, with a comment for each value."""
    values = recommend(corpus)
    values["training"]["seed"] = config.training.seed
    values["data"] = config.data.model_dump(include={"src_lang", "tgt_lang", TRAIN, *OTHER_SETS}, exclude_unset=True)
    lines = {section: _lines(section_values) for section, section_values in values.items()}
    epochs = size_for(corpus).epochs
    return render("config.yaml", new=new, epochs=epochs, **lines)


def _lines(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines of each key as YAML."""
    return {key: write_yaml({key: value}).rstrip("\n") for key, value in values.items()}
