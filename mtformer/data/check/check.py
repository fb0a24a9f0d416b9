"""Check all sets of a config in one pass, with several processes and bounded memory.

Worker processes count the findings of each chunk (`_check`). The main process adds up these counts, finds duplicates
and overlap, and draws random samples, which require whole sets (`_Pass`); temporary files have up to 48 bytes per pair.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from mtformer.cluster.workers import Workers
from mtformer.config.data import DataConfig, FilterConfig, Source
from mtformer.config.languages import WITHOUT_SPACES, base_code
from mtformer.config.schema import TokenizerConfig
from mtformer.data.check import result as found
from mtformer.data.check.result import NUM_EXAMPLES, SIDES, CorpusCheck, Example, Overlap, SetCheck, Side, SourceCount
from mtformer.data.corpus.readers import FaultKind, Faults, RawRecords
from mtformer.data.corpus.sources import bytes_on_disk, describe, files_of, open_reader, require_files
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, SeenKeys, duplicate_keys, hash_keys
from mtformer.data.filters.filters import KEPT, Codes, Reason, count_reasons, in_order, reason_of
from mtformer.data.filters.scripts import Alphabet
from mtformer.data.store.pipeline import PAIRS_AT_ONCE, Pipeline, TokenCounts
from mtformer.errors import log
from mtformer.text.normalization import Normalizer, excerpt, shown
from mtformer.text.tokenizer import TokenizerPair

NUM_SAMPLED = 20  # number of random pairs kept per reason for removal
TEXT_LENGTH = 300  # maximum number of characters per line of an example
MAX_TRACKED = 1000  # maximum number of repeated texts whose occurrences are counted, to find the most frequent ones
MIN_RATIO_LENGTH = 20  # length ratios are checked if at least one side has more characters than this
ANY_FAULT = re.compile(f"[{re.escape(''.join(found.FAULTS.values()))}]")
FAULT_PATTERNS = {name: re.compile(f"[{re.escape(characters)}]") for name, characters in found.FAULTS.items()}
BLANK = np.uint64(0)  # value used as the hash of blank lines
_Checked = tuple[SetCheck, dict[str, Keys], Codes]
"""Counts; hashes of sources (src), targets (tgt) and pairs (pair; near: without case, punctuation and whitespace); and
codes of the reasons for removal, except duplicates."""


def check_corpora(
    data: DataConfig,
    tokenizers: TokenizerPair | None,
    advance: Callable[[str, int, int], object] = lambda *_: None,
    normalizer: Normalizer | None = None,
) -> CorpusCheck:
    """Read train, dev and test sets once, and count faulty, repeated and unusual lines and pairs.

    Without tokenizers, tokens are not counted, and `normalizer` (default: `compose`) tells which lines a tokenizer will
    change. `advance` is called after each chunk with the name of the set, the
    number of pairs read from it so far, and the number of bytes read from disk since the last call.

    Raises DataError if a file is missing, or its compression is damaged; faults inside lines are counted instead.
    """
    require_files(source for _, sources in sets_of(data) for source in sources)
    check = CorpusCheck(data.src_lang, data.tgt_lang, tokenizers is not None)
    earlier: list[_Pass] = []
    normalizers = _target_normalizers(data, tokenizers, normalizer or Normalizer.of_config(TokenizerConfig()))
    with Workers(partial(_check, data.filters, tokenizers, normalizers), data.num_workers) as workers:
        for name, sources in sets_of(data):
            one = _Pass(name, sources, data, earlier)
            for chunk, checked in workers.map(one.chunks()):
                one.add(chunk, *checked)
                advance(name, one.result.pairs, chunk.num_bytes)
            check.sets.append(one.finish())
            check.overlaps += one.overlaps
            earlier += [one] if not name.startswith("test.") else []
            log.info("%s: %s pairs read", name, f"{one.result.pairs:,}")
    return check


def _target_normalizers(
    data: DataConfig, tokenizers: TokenizerPair | None, default: Normalizer
) -> dict[str, Normalizer]:
    """Return the normalization of each side that is a target."""
    src, tgt = (one.normalizer for one in tokenizers) if tokenizers is not None else (default, default)
    return {"src": src, "tgt": tgt} if data.both_directions else {"tgt": tgt}


def sets_of(data: DataConfig) -> list[tuple[str, list[Source]]]:
    """Return the name (train, dev, dev.NAME or test.NAME) and sources of each set in a config."""
    sets = [("train", data.sources), *data.dev_sets.items()]
    sets += [(f"test.{name}", [source]) for name, source in data.test.items()]
    return [(name, sources) for name, sources in sets if sources]


def num_bytes(data: DataConfig) -> int:
    """Return the size of all sets in bytes on disk; datasets from the Hub count as 0."""
    return sum(bytes_on_disk(source) for _, sources in sets_of(data) for source in sources)


@dataclass(frozen=True)
class _Chunk:
    """Consecutive pairs of one source."""

    records: RawRecords
    first_line: int
    num_bytes: int
    files: tuple[str, str]
    """Source file and target file, which may be the same."""
    languages: tuple[str, str]
    is_training: bool

    @cached_property
    def parsed(self) -> tuple[Columns, Faults]:
        faults = Faults()
        return self.records.parse(faults), faults

    def example(self, row: int, side: str = "pair", note: str = "", rank: float = 0.0) -> Example:
        """Return a pair of the chunk as an example of a finding."""
        src, tgt = (lines[row][:TEXT_LENGTH] for lines in self.parsed[0])
        return Example(self.files[side == "tgt"], self.first_line + row, src, tgt, note, rank)


# ---- worker processes -----------------------------------------------------------------------------------------------


def _check(
    filters: FilterConfig,
    tokenizers: TokenizerPair | None,
    target_normalizers: Mapping[str, Normalizer],
    chunk: _Chunk,
    num_threads: int,
) -> _Checked:
    one = _ChunkCheck(chunk)
    for (kind, side), notes in one.faults.notes.items():
        one.find(kind, side, notes)
    for side, lines, language in zip(SIDES, one.texts, chunk.languages, strict=True):
        one.check_characters(side, lines)
        one.check_normalization_forms(side, lines)
        if side in target_normalizers:
            one.check_normalization(side, lines, target_normalizers[side])
        one.check_scripts(side, lines, language)
        one.check_length(side, lines, language)
    one.check_ratio()
    pipeline = Pipeline(filters if chunk.is_training else None, chunk.languages, tokenizers, tokenizes_all=True)
    codes, token_counts, _ = pipeline.run(one.texts, num_threads)
    if tokenizers is not None:
        for side in SIDES:
            one.check_tokens(side, token_counts)
    return one.counts, one.check_equality(), codes


class _ChunkCheck:
    """Computes the counts of one chunk."""

    def __init__(self, chunk: _Chunk) -> None:
        self.chunk = chunk
        self.texts, self.faults = chunk.parsed
        self.counts = SetCheck("", Side(chunk.languages[0]), Side(chunk.languages[1]), chunk.records.size)

    def find(self, kind: str, side: str, notes: Mapping[int, str]) -> None:
        """Add rows, given with their notes, to a finding, with the first rows as examples."""
        examples = [self.chunk.example(row, side, note) for row, note in islice(notes.items(), NUM_EXAMPLES)]
        self.counts.find(kind, side, len(notes), examples)

    def rank(self, kind: str, side: str, rows: NDArray[np.int64], ranks: NDArray[Any], note: str = "") -> None:
        """Add the number of rows to a finding, with the highest-ranked rows as examples; `note` describes the rank."""
        worst = rows[np.argsort(-ranks[rows], kind="stable")[:NUM_EXAMPLES]].tolist()
        examples = [self.chunk.example(row, side, note.format(ranks[row]), float(ranks[row])) for row in worst]
        self.counts.find(kind, side, len(rows), examples)

    def check_characters(self, side: str, lines: list[str]) -> None:
        """Find faulty characters; U+FFFD in place of invalid bytes is not counted again."""
        if not ANY_FAULT.search(" ".join(lines)):
            return
        invalid = {row for key in (side, "pair") for row in self.faults.notes.get((FaultKind.INVALID, key), ())}
        suspicious = {row: line for row, line in enumerate(lines) if ANY_FAULT.search(line)}
        suspicious |= {row: lines[row].replace("\ufffd", " ") for row in suspicious.keys() & invalid}
        faulty: set[int] = set()
        for kind, pattern in FAULT_PATTERNS.items():
            matches = ((row, pattern.search(line)) for row, line in suspicious.items())
            notes = {row: f"character {match.start() + 1}" for row, match in matches if match}
            self.find(kind, side, notes)
            faulty.update(notes)
        self.counts.side(side).faulty_lines += len(faulty)

    def check_normalization(self, side: str, lines: list[str], normalizer: Normalizer) -> None:
        """Find target lines that the model cannot write, because the normalization of the tokenizer changes them."""
        changes = normalizer.changes(lines)
        notes = {row: f"becomes {shown(excerpt(changed, lines[row]))}" for row, changed in changes.items()}
        self.find(found.NORMALIZED, side, notes)

    def check_normalization_forms(self, side: str, lines: list[str]) -> None:
        """Find lines with characters that differ in the Unicode normalization forms NFC and NFD."""
        other = [(row, line) for row, line in enumerate(lines) if not line.isascii()]
        self.find(found.COMPOSED, side, {row: "" for row, line in other if len(normalize("NFD", line)) > len(line)})
        self.find(found.DECOMPOSED, side, {row: "" for row, line in other if len(normalize("NFC", line)) < len(line)})

    def check_scripts(self, side: str, lines: list[str], language: str) -> None:
        """Find letters in scripts that the language does not use; a few Latin letters are always accepted."""
        counts, note = Alphabet(language).count(lines), "{:.0f} letters of another script"
        self.rank(found.FOREIGN, side, np.flatnonzero(counts.foreign), counts.foreign, note)
        self.rank(found.OTHER_SCRIPT, side, np.flatnonzero(counts.own < counts.weight / 2), counts.weight - counts.own)

    def check_length(self, side: str, lines: list[str], language: str) -> None:
        """Count characters and words; `SetCheck.finish` selects outliers among the longest lines."""
        lengths = self._count("characters", side, map(len, lines))
        self.rank(found.LONG, side, np.arange(len(lines)), lengths, "{:,} characters")
        if base_code(language) not in WITHOUT_SPACES:
            self._count("words", side, (len(line.split()) for line in lines))

    def check_ratio(self) -> None:
        src, tgt = (np.fromiter(map(len, lines), np.float64, len(lines)) for lines in self.texts)
        rows = np.flatnonzero((np.minimum(src, tgt) > 0) & (np.maximum(src, tgt) > MIN_RATIO_LENGTH))
        ratios = np.maximum(tgt, 1) / np.maximum(src, 1)
        self.counts.log_ratios.update(np.rint(np.log(ratios[rows]) / found.RATIO_STEP).astype(int).tolist())
        self.rank(found.HIGH_RATIO, "pair", rows, ratios, "{:.3g} target characters per source character")
        self.rank(found.LOW_RATIO, "pair", rows, 1 / ratios, "{:.3g} source characters per target character")

    def check_tokens(self, side: str, token_counts: TokenCounts) -> None:
        lengths = self._count("tokens", side, token_counts[:, SIDES.index(side)])
        unknown = token_counts[:, 2 + SIDES.index(side)].astype(np.int64)
        self.rank(found.UNKNOWN, side, np.flatnonzero(unknown), unknown, "{} unknown")
        counts = self.counts.side(side)
        counts.unknown = int(unknown.sum())
        counts.word_tokens = int(lengths.sum()) if "words" in counts.lengths else 0

    def check_equality(self) -> dict[str, Keys]:
        """Find empty sides and copies; return the hashes for finding repeated lines and pairs."""
        blank = [np.array([not line.strip() for line in lines], np.bool_) for lines in self.texts]
        hashes = {}
        for side, lines, is_empty in zip(SIDES, self.texts, blank, strict=True):
            self.find(found.EMPTY, side, dict.fromkeys(np.flatnonzero(is_empty).tolist(), ""))
            hashes[side] = np.where(is_empty, BLANK, hash_keys(lines))
        is_copy = [src.strip() == tgt.strip() for src, tgt in zip(*self.texts, strict=True)]
        self.find(found.COPY, "pair", dict.fromkeys(np.flatnonzero(np.array(is_copy) & ~blank[0]).tolist(), ""))
        for name, is_normalized in (("pair", False), ("near", True)):
            keys = duplicate_keys(self.texts, is_normalized=is_normalized)
            hashes[name] = np.where(blank[0] & blank[1], BLANK, keys)
        return hashes

    def _count(self, unit: str, side: str, lengths: Iterable[int]) -> NDArray[np.int32]:
        counted = np.fromiter(lengths, np.int32, self.counts.pairs)
        self.counts.side(side).lengths[unit] = found.Lengths(counted.tolist())
        return counted


# ---- whole sets -----------------------------------------------------------------------------------------------------


class _Pass:
    """Checks one set, and looks up its lines in the sets that were checked earlier."""

    def __init__(self, name: str, sources: Sequence[Source], data: DataConfig, earlier: Sequence["_Pass"]) -> None:
        self.data, self.sources, self.is_training = data, sources, name == "train"
        src_lang, tgt_lang = data.languages(sources[0])
        self.result = SetCheck(name, Side(src_lang), Side(tgt_lang))
        self.earlier = list(earlier)
        self.overlaps = [Overlap(name, one.result.name) for one in earlier]
        self.seen = {column: SeenKeys() for column in (*SIDES, "pair", "near")}
        self._several_targets, self._kept = SeenKeys(), SeenKeys()
        self._repeated: dict[tuple[str, str, str], dict[int, Example]] = {}
        """Examples of the first `MAX_TRACKED` repeated texts, by kind, side and note, ranked by their frequency."""
        self._num_removed = Counter[str]()
        self._random = np.random.default_rng(0)

    def chunks(self) -> Iterator[_Chunk]:
        for source in self.sources:
            count, paths, position = SourceCount(describe(source)), files_of(source), 0
            self.result.sources.append(count)
            files = (paths[0], paths[-1]) if paths else (count.name, count.name)
            with open_reader(source, self.data) as reader:
                while (records := reader.take(PAIRS_AT_ONCE)).size:
                    first, more, position = count.pairs + 1, reader.position - position, reader.position
                    count.pairs += records.size
                    yield _Chunk(records, first, more, files, self.data.languages(source), self.is_training)

    def add(self, chunk: _Chunk, counts: SetCheck, hashes: dict[str, Keys], codes: Codes) -> None:
        self.result.merge(counts)
        has_text = hashes["pair"] != BLANK
        is_repeated = self.seen["pair"].add(hashes["pair"]) & has_text
        is_near = self.seen["near"].add(hashes["near"]) & has_text & ~is_repeated
        distinct = np.flatnonzero(~is_repeated & (hashes["src"] != BLANK) & (hashes["tgt"] != BLANK))
        has_other_target = distinct[self.seen["src"].add(hashes["src"][distinct])]
        self.seen["tgt"].add(hashes["tgt"])
        num_sources = int((~self._several_targets.add(hashes["src"][has_other_target])).sum())
        for kind, side, note, keys, rows in (
            (found.DUPLICATE, "pair", "occurs {} times", hashes["pair"], np.flatnonzero(is_repeated)),
            (found.NEAR_DUPLICATE, "pair", "occurs in {} spellings", hashes["near"], np.flatnonzero(is_near)),
            (found.SEVERAL_TARGETS, "src", "has {} targets", hashes["src"], has_other_target),
        ):
            self.result.find(kind, side, len(rows) if side == "pair" else num_sources)
            examples = self._repeated.setdefault((kind, side, note), {})
            for row, key in zip(rows.tolist(), keys[rows].tolist(), strict=True):
                if key in examples:
                    examples[key] = replace(examples[key], rank=examples[key].rank + 1)
                elif len(examples) < MAX_TRACKED:
                    examples[key] = chunk.example(row, side, rank=2)
        self._add_overlaps(chunk, hashes)
        self._add_sample(chunk, hashes, codes)

    def _add_overlaps(self, chunk: _Chunk, hashes: dict[str, Keys]) -> None:
        """Find lines and pairs that also occur in earlier sets."""
        for overlap, other in zip(self.overlaps, self.earlier, strict=True):
            overlap.size += chunk.records.size
            for column, finding in overlap.found.items():
                is_known = other.seen[column].contains(hashes[column])
                rows = np.flatnonzero(is_known & (hashes[column] != BLANK)).tolist()
                # Long lines rank higher, because they are less likely to be equal by chance.
                lines = chunk.parsed[0][column == "tgt"]
                finding.add(len(rows), [chunk.example(row, column, rank=len(lines[row])) for row in rows])

    def _add_sample(self, chunk: _Chunk, hashes: dict[str, Keys], codes: Codes) -> None:
        """Count the reasons for removal and, for each reason, keep the pairs with the lowest random ranks."""
        filters = self.data.filters
        if self.is_training and filters.drop_duplicates:
            keys = hashes["near" if filters.normalize_duplicates else "pair"]
            kept = np.flatnonzero((codes == KEPT) & (keys != BLANK))
            codes[kept[self._kept.add(keys[kept])]] = Reason.DUPLICATE.code
        self._num_removed.update(count_reasons(codes))
        ranks = self._random.random(len(codes))
        for number in np.unique(codes).tolist():
            sample = self.result.sample.setdefault(reason_of(number).value if number != KEPT else "", [])
            limit = sample[-1].rank if len(sample) == NUM_SAMPLED else 1.0
            rows = np.flatnonzero((codes == number) & (ranks < limit))
            rows = rows[np.argsort(ranks[rows])[:NUM_SAMPLED]]
            sample += [chunk.example(row, rank=float(ranks[row])) for row in rows.tolist()]
            sample.sort(key=lambda example: example.rank)
            del sample[NUM_SAMPLED:]

    def finish(self) -> SetCheck:
        for (kind, side, note), examples in self._repeated.items():
            if finding := self.result.findings.get((kind, side)):
                finding.add(0, [replace(one, note=note.format(int(one.rank))) for one in examples.values()])
        if self.is_training:
            self.result.removed = in_order(self._num_removed)
        self.result.finish()
        return self.result
