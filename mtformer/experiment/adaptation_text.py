"""The text of an adaptation: new pairs for training and dev, and old text that is repeated beside them.

`mtformer.experiment.adapt` writes the files of an adaptation with these functions, and describes them.
"""

import heapq
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtformer.config.data import CorpusConfig, DataConfig, JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.languages import base_code, is_language
from mtformer.data.corpus.readers import read_lines, suffixes, tsv_cell
from mtformer.data.corpus.sources import (
    describe,
    file_states,
    open_reader,
    read_pairs,
    require_same_contents,
    require_unchanged,
    source_fingerprint,
)
from mtformer.data.corpus.tmx import read_tmx
from mtformer.data.data_report import Pair
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError, log
from mtformer.files import FileState, read_json, unsealed, write_text
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

DEV_PAIRS = 500
"""Maximum number of new pairs that are held out as dev set, one in ten, if no dev file is given."""
HELD_OUT_ONE_IN = 10
"""One pair in this number is held out, as long as there are fewer than `DEV_PAIRS`."""
MIN_PAIRS = 50
"""Minimum number of new pairs for training."""
REPLAY_LINES = 10_000
"""Number of new sources that the old model translates at once."""


# ---- files that the user names --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewText:
    """The files of the new text, with what identifies their contents."""

    data: DataConfig
    """Languages of the text."""
    sources: list[Source]
    """All training files, and the dev file, if there is one."""
    states: dict[str, FileState]
    """Size and time of each file."""
    fingerprints: list[str]
    """Checksum of each source."""

    @classmethod
    def open(cls, train: Sequence[str], dev: str | None, data: DataConfig) -> "NewText":
        """Compute the checksums of the files; raise DataError if one cannot be read.

        Args:
            train: names of files, see `file_source`.
            dev: name of a file; None: there is no dev file.
            data: languages of the text.
        """
        names = [*train, dev] if dev is not None else train
        sources = [file_source(name) for name in names]
        states = file_states(sources)
        fingerprints = [source_fingerprint(source, data) for source in sources]
        return cls(data, sources, states, fingerprints)

    def require_unchanged(self) -> None:
        """Raise DataError if a file has changed since its checksum was computed."""
        require_unchanged(self.sources, self.states)
        for source, fingerprint in zip(self.sources, self.fingerprints, strict=True):
            require_same_contents(source, self.data, fingerprint)


def file_source(name: str) -> Source:
    """Return the source for a TSV, JSONL or TMX file, or for two parallel files `SRC,TGT`."""
    files = name.split(",")
    if Path(name).exists() or len(files) == 1:
        is_jsonl = suffixes(name)[0] == ".jsonl"
        return JsonlFile(jsonl=name) if is_jsonl else TsvFile(tsv=name)

    has_other_format = re.search(r"\.(tsv|jsonl|tmx)\b", name.lower()) is not None
    if len(files) > 2 or has_other_format:
        raise ConfigError(f"{name}: too many files; give one TSV, JSONL or TMX file, or two files SRC,TGT")
    return TextFiles(src=files[0], tgt=files[1])


def is_tmx(source: Source) -> bool:
    """Return True if `file_source` returned this source for a translation memory."""
    return isinstance(source, TsvFile) and suffixes(source.tsv)[0] == ".tmx"


def read_file(name: str, data: DataConfig) -> Iterator[Pair]:
    """Yield the pairs of a file, as cells of a TSV file; raise DataError if they are in other languages."""
    source = file_source(name)
    pairs: Iterable[Pair]
    if is_tmx(source):
        pairs = read_tmx(name, data.src_lang, data.tgt_lang)
    else:
        if isinstance(source, TextFiles):
            _require_language(source.src, data.src_lang, data)
            _require_language(source.tgt, data.tgt_lang, data)
        pairs = read_pairs(source, data)

    for src, tgt in pairs:
        yield tsv_cell(src), tsv_cell(tgt)


def _require_language(path: str, language: str, data: DataConfig) -> None:
    """Raise DataError if a file name ends with the code of another language, as `train.fr` does."""
    ending = suffixes(path)[0].removeprefix(".")
    is_code = is_language(ending) and len(ending) == 2
    if is_code and base_code(ending) != base_code(language):
        raise DataError(
            f"{path}: its name ends with .{ending}, but the model translates {data.src_lang}-{data.tgt_lang}; "
            "give the files as SRC,TGT, or rename the file"
        )


def readable(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """Return the sources whose first pair can be read; log a warning for each of the others."""
    readable_sources: list[Source] = []
    for source in sources:
        try:
            with open_reader(source, data) as reader:
                reader.take(1).texts()
            readable_sources.append(source)
        except DataError as error:
            log.warning("%s cannot be read: %s", describe(source), error)
    return readable_sources


# ---- new text -------------------------------------------------------------------------------------------------------


def write_new_text(folder: Path, train: Sequence[str], dev: str | None, data: DataConfig) -> None:
    """Write the new pairs as train.tsv and dev.tsv; no pair is in both, or has a blank side.

    Args:
        folder: folder of the two files.
        train: names of files, see `file_source`.
        dev: name of a file; None: pairs of `train` are held out.
        data: languages of the text.
    """
    dev_pairs: dict[Pair, None] = {}
    held_out_hashes: set[int] = set()
    if dev is not None:
        complete_pairs = filter(all, read_file(dev, data))
        dev_pairs = dict.fromkeys(complete_pairs)
    else:
        held_out_hashes = _hashes_to_hold_out(train, data)

    num_train = 0
    num_blank = 0
    with (folder / "train.tsv").open("w", encoding="utf-8", newline="\n") as file:
        for pair in _read_files(train, data):
            if not all(pair):
                num_blank += 1
                continue
            if _hash(pair) in held_out_hashes:
                dev_pairs[pair] = None
            if pair not in dev_pairs:
                file.write("\t".join(pair) + "\n")
                num_train += 1

    if num_blank:
        log.warning("new text: %s pairs with a blank side are left out", f"{num_blank:,}")
    if num_train < MIN_PAIRS or not dev_pairs:
        raise DataError(
            f"{', '.join(train)}: {num_train} new pairs for training and {len(dev_pairs)} for dev; "
            f"give at least {MIN_PAIRS} for training and 1 for dev"
        )
    dev_lines = [f"{src}\t{tgt}\n" for src, tgt in dev_pairs]
    write_text(folder / "dev.tsv", "".join(dev_lines))
    log.info("new text: %s pairs for training, %s for dev", f"{num_train:,}", f"{len(dev_pairs):,}")


def _hashes_to_hold_out(train: Sequence[str], data: DataConfig) -> set[int]:
    """Return the hashes of the pairs to hold out; they are from all files, and do not depend on their order."""
    complete_pairs = filter(all, _read_files(train, data))
    hashes = map(_hash, complete_pairs)
    candidates = {pair_hash for pair_hash in hashes if pair_hash % HELD_OUT_ONE_IN == 0}
    return set(heapq.nsmallest(DEV_PAIRS, candidates))


def _read_files(names: Sequence[str], data: DataConfig) -> Iterator[Pair]:
    for name in names:
        yield from read_file(name, data)


def _hash(pair: Pair) -> int:
    return zlib.crc32("\t".join(pair).encode())


# ---- old text -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OldText:
    """The training corpora of the old model, which are repeated beside the new text."""

    corpora: dict[str, CorpusConfig]
    """By their names in the new config, with the weights of the old one."""
    num_tokens: float
    """Number of target tokens per epoch with these weights."""

    def with_tokens(self, num_tokens: float) -> dict[str, CorpusConfig]:
        """Return the corpora with weights that give them this number of target tokens per epoch."""
        scale = num_tokens / self.num_tokens
        scaled: dict[str, CorpusConfig] = {}
        for name, corpus in self.corpora.items():
            weight = scale * corpus.weight
            scaled[name] = corpus.model_copy(update={"weight": weight})
        return scaled


def old_text(base: RunDir, data: DataConfig) -> OldText:
    """Return the training corpora of a run, with their size.

    Args:
        base: the run.
        data: its corpora, which can be read.
    """
    corpora = dict(data.corpora)
    if data.train:
        corpora = {"train": CorpusConfig(sources=data.train), **corpora}

    tokens = _target_tokens(base, corpora, data)
    weighted_tokens: list[float] = []
    for name, corpus in corpora.items():
        weighted_tokens.append(_tokens_of_corpus(name, tokens) * corpus.weight)
    num_tokens = sum(weighted_tokens)
    if num_tokens <= 0:
        raise DataError(f"{base.path}: its training corpora have no text; check the files that its config.yaml names")

    # The name of the new corpus is `new`, so that of an earlier adaptation gets another name.
    names = {"new": _unused_name(corpora)}
    renamed = {names.get(name, name): corpus for name, corpus in corpora.items()}
    return OldText(renamed, num_tokens)


def _target_tokens(base: RunDir, corpora: Mapping[str, CorpusConfig], data: DataConfig) -> dict[str, int]:
    """Return the numbers of target tokens by corpus, or by corpus and direction as in `train.en-de`.

    The name is empty if the data report has only one corpus. A bundle has no data report, so its tokens are counted.
    """
    try:
        report = unsealed(read_json(base.data_report))
        reports = report.get("corpora", {"": report})
        return {name: _token_count(corpus["tokens"]["tgt"]) for name, corpus in reports.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not base.is_bundle:
            log.warning("%s: damaged (%s); the tokens of its corpora are counted again", base.data_report, error)

    tokenizer = TokenizerPair.load(base.tokenizer).tgt
    counts: dict[str, int] = {}
    for name, corpus in corpora.items():
        counts[name] = 0
        for source in corpus.sources:
            for _, tgt in read_pairs(source, data):
                [ids] = tokenizer.encode([tgt])
                counts[name] += len(ids)
    return counts


def _token_count(value: object) -> int:
    """Return a number of tokens in a data report; raise ValueError if it is no number."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.20} is no number of tokens")
    return value


def _tokens_of_corpus(name: str, tokens: Mapping[str, int]) -> int:
    """Return the number of tokens of a corpus in all directions, given the result of `_target_tokens`."""
    total = 0
    for key, count in tokens.items():
        corpus_name = key.split(".")[0]
        if corpus_name in ("", name):
            total += count
    return total


def _unused_name(corpora: Mapping[str, CorpusConfig]) -> str:
    """Return the first of the names `old`, `old2`, `old3`, ... that no corpus has."""
    name = "old"
    number = 1
    while name in corpora:
        number += 1
        name = f"old{number}"
    return name


def write_replay(folder: Path, base: Path, device: str) -> None:
    """Write replay.tsv: the sources of train.tsv with their translations by the old model.

    Args:
        folder: folder of the two files.
        base: run directory or bundle of the old model.
        device: `training.device` of the old model.
    """
    log.info("the corpora of %s cannot be read; for replay, it translates the new sources", base)
    translator = Translator.load(base, device=device)
    translator = translator.with_decoding(translator.decoding.for_validation(), beam_size=1)

    lines = iter(read_lines(folder / "train.tsv"))
    with (folder / "replay.tsv").open("w", encoding="utf-8", newline="\n") as file:
        while block := list(islice(lines, REPLAY_LINES)):
            sources = [line.split("\t")[0] for line in block]
            translations = translator.translate(sources)
            for src, translation in zip(sources, translations, strict=True):
                file.write(f"{src}\t{translation.text}\n")
