"""Check all sets of a config in one pass, with several processes and bounded memory.

Worker processes count the findings of each chunk (`_check`). The main process adds up these counts, finds duplicates
and overlap, and draws random samples, which require whole sets (`_SetPass`); temporary files have up to 48 bytes per
pair.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from operator import eq
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from mtformer.cluster.workers import Workers
from mtformer.config.data import DataConfig, FilterConfig, Source
from mtformer.config.languages import has_spaces
from mtformer.config.schema import TokenizerConfig
from mtformer.data.check.layout import STYLES, ChunkLayout, SourceLayout, UnusualStyle, measure
from mtformer.data.check.result import (
    FAULTS,
    NUM_EXAMPLES,
    RATIO_STEP,
    SIDES,
    CorpusCheck,
    Example,
    FindingKind,
    Lengths,
    Overlap,
    SetCheck,
    SideCounts,
    SourceCount,
)
from mtformer.data.corpus.readers import FaultKind, Faults, RawRecords
from mtformer.data.corpus.sources import bytes_on_disk, describe, files_of, open_reader, require_files
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, Mask, SeenKeys, duplicate_keys, hash_keys
from mtformer.data.filters.filters import KEPT, Codes, Reason, count_reasons, in_order, reason_of
from mtformer.data.filters.scripts import Alphabet
from mtformer.data.store.pairs import Ints
from mtformer.data.store.pipeline import PAIRS_AT_ONCE, Pipeline, TokenCounts
from mtformer.errors import log
from mtformer.text.normalization import Normalizer, excerpt, shown
from mtformer.text.tokenizer import TokenizerPair

NUM_SAMPLED = 20
"""Number of random pairs kept per reason for removal."""

TEXT_LENGTH = 300
"""Maximum number of characters per line of an example."""

MAX_TRACKED = 1000
"""Maximum number of repeated texts whose occurrences are counted, to find the most frequent ones."""

MIN_RATIO_LENGTH = 20
"""Length ratios are checked if at least one side has more characters than this."""

LAYOUT_PAIRS = 2000
"""Number of pairs at the start of a training file in which faults of the whole file are looked for before training."""

STYLE_REMEDY = (
    "the model will read and write only such text: change its input in the same way and its translations back, or "
    "train on the original text"
)
"""Consequence of training on text of an unusual style."""

ANY_FAULT = re.compile(f"[{re.escape(''.join(FAULTS.values()))}]")
"""Any character of `FAULTS`."""

FAULT_PATTERNS = {name: re.compile(f"[{re.escape(characters)}]") for name, characters in FAULTS.items()}
"""Patterns of the characters of `FAULTS` by their names."""

BLANK = np.uint64(0)
"""Value used as the hash of blank lines."""


def check_corpora(
    data: DataConfig,
    tokenizers: TokenizerPair | None,
    advance: Callable[[str, int, int], object] = lambda *_: None,
    normalizer: Normalizer | None = None,
) -> CorpusCheck:
    """Read train, dev and test sets once, and count faulty, repeated and unusual lines and pairs.

    Args:
        data: the `data` section of a config; `num_workers` is the number of processes.
        tokenizers: the tokenizers; None: tokens are not counted.
        advance: function that is called after each chunk with the name of the set, the number of pairs read from it so
            far, and the number of bytes read from disk since the last call.
        normalizer: without tokenizers, the normalization that tells which lines a tokenizer will change; None: that of
            the default settings.

    Raises DataError if a file is missing, or its compression is damaged; faults inside lines are counted instead.
    """
    for _, sources in sets_of(data):
        require_files(sources)
    if normalizer is None:
        normalizer = Normalizer.of_config(TokenizerConfig())
    normalizers = _target_normalizers(data, tokenizers, normalizer)

    check = CorpusCheck(data.src_lang, data.tgt_lang, has_tokenizer=tokenizers is not None)
    check_chunk = partial(_check, data.filters, tokenizers, normalizers)
    earlier: list[_SetPass] = []
    with Workers(check_chunk, data.num_workers) as workers:
        for name, sources in sets_of(data):
            set_pass = _SetPass(name, sources, data, earlier)
            for chunk, checked in workers.map(set_pass.chunks()):
                set_pass.add(chunk, checked)
                advance(name, set_pass.result.pairs, chunk.num_bytes)

            check.sets.append(set_pass.finish())
            check.overlaps += set_pass.overlaps
            if not name.startswith("test."):  # test sets are not compared with each other
                earlier.append(set_pass)
            log.info("%s: %s pairs read", name, f"{set_pass.result.pairs:,}")
    return check


def _target_normalizers(
    data: DataConfig, tokenizers: TokenizerPair | None, default: Normalizer
) -> dict[str, Normalizer]:
    """Return the normalization of each side that is a target."""
    src_normalizer = default if tokenizers is None else tokenizers.src.normalizer
    tgt_normalizer = default if tokenizers is None else tokenizers.tgt.normalizer
    if data.both_directions:
        return {"tgt": tgt_normalizer, "src": src_normalizer}
    return {"tgt": tgt_normalizer}


def sets_of(data: DataConfig) -> list[tuple[str, list[Source]]]:
    """Return the name (train, dev, dev.NAME or test.NAME) and sources of each set in a config."""
    sets = [("train", data.sources), *data.dev_sets.items()]
    for name, source in data.test.items():
        sets.append((f"test.{name}", [source]))
    return [(name, sources) for name, sources in sets if sources]


def num_bytes(data: DataConfig) -> int:
    """Return the size of all sets in bytes on disk; datasets from the Hub count as 0."""
    size = 0
    for _, sources in sets_of(data):
        size += sum(map(bytes_on_disk, sources))
    return size


@dataclass(frozen=True)
class _Chunk:
    """Consecutive pairs of one source."""

    records: RawRecords
    first_line: int
    num_bytes: int
    src_file: str
    tgt_file: str
    """Target file, which may be the source file."""
    languages: tuple[str, str]
    is_training: bool

    @cached_property
    def parsed(self) -> tuple[Columns, Faults]:
        """Text and faulty records."""
        faults = Faults()
        texts = self.records.parse(faults)
        return texts, faults

    def measured_layout(self) -> ChunkLayout:
        """Return the measures by which faults of the whole source are found."""
        texts, _ = self.parsed
        return measure(texts, self.languages, self.first_line - 1)

    def example(self, row: int, side: str = "pair", note: str = "", rank: float = 0.0) -> Example:
        """Return a pair of the chunk as an example of a finding.

        Args:
            row: index of the pair in the chunk.
            side: src, tgt or pair, see `Finding`.
            note: description of the problem in this pair.
            rank: severity, see `Example`.
        """
        (src_lines, tgt_lines), _ = self.parsed
        file = self.tgt_file if side == "tgt" else self.src_file
        src = src_lines[row][:TEXT_LENGTH]
        tgt = tgt_lines[row][:TEXT_LENGTH]
        line_number = self.first_line + row
        return Example(file, line_number, src, tgt, note, rank)


def warn_of_layout(data: DataConfig) -> None:
    """Log a warning for each fault of a whole training file, such as column names, according to its first pairs.

    Files of the same unusual style, such as tokenized text, have one warning. Hugging Face datasets are left out,
    because their columns have names, and a stream would be read twice.
    """
    styles: dict[str, list[UnusualStyle]] = {}
    """Unusual styles of each source, by its first file."""
    for source in data.sources:
        files = files_of(source)
        if not files:
            continue
        with open_reader(source, data) as reader:
            records = reader.take(LAYOUT_PAIRS)
        chunk = _Chunk(records, 1, 0, files[0], files[-1], data.languages(source), is_training=True)
        layout = SourceLayout()
        layout.add(chunk.measured_layout(), chunk.example)
        for finding in layout.findings():
            if finding.kind not in STYLES:
                example = finding.examples[0]
                log.warning("%s:%d: %s; %s", example.file, example.line, finding.title, finding.rule)

        styles[files[0]] = [style for style in layout.styles() if not _is_varied(style, data)]
    _warn_of_styles(styles)


def _is_varied(style: UnusualStyle, data: DataConfig) -> bool:
    """Return True if noise changes the case of sources in one case, so that the model reads any case."""
    return style.side == "src" and style.kind != FindingKind.TOKENIZED and data.noise.case > 0


def _warn_of_styles(styles: Mapping[str, Sequence[UnusualStyle]]) -> None:
    """Log one warning for all files of the same unusual styles, with the measures of the first file."""
    files_by_style: dict[tuple[str, ...], list[str]] = {}
    for file, styles_of_file in styles.items():
        titles = tuple(style.title for style in styles_of_file)
        if titles:
            files_by_style.setdefault(titles, []).append(file)

    for files in files_by_style.values():
        descriptions = [f"{style.title} ({style.evidence})" for style in styles[files[0]]]
        others = f" and {len(files) - 1:,} more files" if len(files) > 1 else ""
        log.warning("%s%s: %s; %s", files[0], others, ", ".join(descriptions), STYLE_REMEDY)


@dataclass(frozen=True)
class _CheckedChunk:
    """Results of a worker process."""

    counts: SetCheck
    hashes: dict[str, Keys]
    """Hashes of sources (src), targets (tgt) and pairs (pair; near: without case, punctuation and whitespace)."""
    codes: Codes
    """Codes of the reasons for removal, except duplicates."""
    layout: ChunkLayout


# ---- worker processes -----------------------------------------------------------------------------------------------


def _check(
    filters: FilterConfig,
    tokenizers: TokenizerPair | None,
    target_normalizers: Mapping[str, Normalizer],
    chunk: _Chunk,
    num_threads: int,
) -> _CheckedChunk:
    """Check a chunk in a worker process."""
    check = _ChunkCheck(chunk)
    check.add_faults()
    for side, lines, language in zip(SIDES, check.texts, chunk.languages, strict=True):
        check.check_characters(side, lines)
        check.check_normalization_forms(side, lines)
        if side in target_normalizers:
            check.check_normalization(side, lines, target_normalizers[side])
        check.check_scripts(side, lines, language)
        check.check_length(side, lines, language)
    check.check_ratio()

    chunk_filters = filters if chunk.is_training else None
    pipeline = Pipeline(chunk_filters, chunk.languages, tokenizers, tokenizes_all=True)
    filtered = pipeline.run(check.texts, num_threads)
    if tokenizers is not None:
        src_tokens, tgt_tokens, src_unknown, tgt_unknown = filtered.counts.T
        check.check_tokens("src", src_tokens, src_unknown)
        check.check_tokens("tgt", tgt_tokens, tgt_unknown)
    hashes = check.check_equality()
    layout = chunk.measured_layout()
    return _CheckedChunk(check.counts, hashes, filtered.codes, layout)


class _ChunkCheck:
    """Computes the counts of one chunk."""

    def __init__(self, chunk: _Chunk) -> None:
        self.chunk = chunk
        self.texts, self.faults = chunk.parsed
        src, tgt = map(SideCounts, chunk.languages)
        self.counts = SetCheck("", src, tgt, chunk.records.size)

    def find(self, kind: str, side: str, notes: Mapping[int, str]) -> None:
        """Add rows to a finding, with the first rows as examples.

        Args:
            kind: kind of the finding, see `Finding`.
            side: src, tgt or pair, see `Finding`.
            notes: note of each row, by its index in the chunk.
        """
        first_notes = islice(notes.items(), NUM_EXAMPLES)
        examples = [self.chunk.example(row, side, note) for row, note in first_notes]
        self.counts.find(kind, side, len(notes), examples)

    def find_rows(self, kind: str, side: str, rows: Iterable[int]) -> None:
        """Add rows to a finding, with the first rows as examples, which have no notes.

        Args:
            kind: see `find`.
            side: see `find`.
            rows: indices of the rows in the chunk.
        """
        self.find(kind, side, dict.fromkeys(rows, ""))

    def rank(self, kind: str, side: str, rows: Ints, ranks: NDArray[Any], note: str = "") -> None:
        """Add the number of rows to a finding, with the highest-ranked rows as examples.

        Args:
            kind: see `find`.
            side: see `find`.
            rows: indices of the rows in the chunk.
            ranks: rank of each row of the chunk; higher is worse.
            note: note of the examples, with a placeholder for the rank.
        """
        order = np.argsort(-ranks[rows], kind="stable")
        worst = rows[order[:NUM_EXAMPLES]].tolist()
        examples: list[Example] = []
        for row in worst:
            row_rank = ranks[row]
            row_note = note.format(row_rank)
            examples.append(self.chunk.example(row, side, row_note, float(row_rank)))
        self.counts.find(kind, side, len(rows), examples)

    def add_faults(self) -> None:
        """Add the faults of the readers."""
        for (kind, side), notes in self.faults.notes.items():
            self.find(kind, side, notes)

    def check_characters(self, side: str, lines: list[str]) -> None:
        """Find faulty characters; U+FFFD in place of invalid bytes is not counted again."""
        if not ANY_FAULT.search(" ".join(lines)):  # one search for all lines is faster
            return
        faulty = [row for row, line in enumerate(lines) if ANY_FAULT.search(line)]
        suspicious = {row: lines[row] for row in faulty}
        for key in (side, "pair"):
            invalid_rows = self.faults.notes.get((FaultKind.INVALID, key), {})
            for row in suspicious.keys() & invalid_rows.keys():
                suspicious[row] = lines[row].replace("\ufffd", " ")

        faulty_rows: set[int] = set()
        for kind, pattern in FAULT_PATTERNS.items():
            notes: dict[int, str] = {}
            for row, line in suspicious.items():
                match = pattern.search(line)
                if match:
                    notes[row] = f"character {match.start() + 1}"
            self.find(kind, side, notes)
            faulty_rows.update(notes)
        self.counts.side(side).faulty_lines += len(faulty_rows)

    def check_normalization(self, side: str, lines: list[str], normalizer: Normalizer) -> None:
        """Find target lines that the model cannot write, because the normalization of the tokenizer changes them.

        Args:
            side: side that is a target, src or tgt.
            lines: all lines of this side.
            normalizer: normalization of the tokenizer of this side.
        """
        notes: dict[int, str] = {}
        for row, changed_line in normalizer.changes(lines).items():
            changed_part = excerpt(changed_line, lines[row])
            notes[row] = f"becomes {shown(changed_part)}"
        self.find(FindingKind.NORMALIZED, side, notes)

    def check_normalization_forms(self, side: str, lines: list[str]) -> None:
        """Find lines with characters that differ in the Unicode normalization forms NFC and NFD."""
        composed: list[int] = []
        decomposed: list[int] = []
        for row, line in enumerate(lines):
            if line.isascii():
                continue
            if len(normalize("NFD", line)) > len(line):
                composed.append(row)
            if len(normalize("NFC", line)) < len(line):
                decomposed.append(row)
        self.find_rows(FindingKind.COMPOSED, side, composed)
        self.find_rows(FindingKind.DECOMPOSED, side, decomposed)

    def check_scripts(self, side: str, lines: list[str], language: str) -> None:
        """Find letters in scripts that the language does not use; a few Latin letters are always accepted.

        Args:
            side: src or tgt.
            lines: all lines of this side.
            language: language code of this side.
        """
        counts = Alphabet(language).count(lines)
        foreign_rows = np.flatnonzero(counts.foreign)
        self.rank(FindingKind.FOREIGN, side, foreign_rows, counts.foreign, "{:.0f} letters of another script")

        is_mostly_foreign = counts.own < counts.weight / 2
        mostly_foreign_rows = np.flatnonzero(is_mostly_foreign)
        self.rank(FindingKind.OTHER_SCRIPT, side, mostly_foreign_rows, counts.weight - counts.own)

    def check_length(self, side: str, lines: list[str], language: str) -> None:
        """Count characters and words; `SetCheck.finish` selects outliers among the longest lines.

        For arguments see `check_scripts`.
        """
        lengths = np.array(list(map(len, lines)))
        self._count("characters", side, lengths.tolist())
        all_rows = np.arange(len(lines))
        self.rank(FindingKind.LONG, side, all_rows, lengths, "{:,} characters")

        if has_spaces(language):
            num_words = [len(line.split()) for line in lines]
            self._count("words", side, num_words)

    def check_ratio(self) -> None:
        """Count length ratios; `SetCheck.finish` selects outliers among the highest and lowest ones."""
        src_lines, tgt_lines = self.texts
        src_lengths = np.array(list(map(len, src_lines)), np.float64)
        tgt_lengths = np.array(list(map(len, tgt_lines)), np.float64)
        has_both_sides = np.minimum(src_lengths, tgt_lengths) > 0
        is_long = np.maximum(src_lengths, tgt_lengths) > MIN_RATIO_LENGTH
        rows = np.flatnonzero(has_both_sides & is_long)
        ratios = np.maximum(tgt_lengths, 1) / np.maximum(src_lengths, 1)  # 1: avoid dividing by 0

        log_ratios = np.log(ratios[rows])
        steps = np.rint(log_ratios / RATIO_STEP).astype(int)
        self.counts.log_ratios.update(steps.tolist())
        self.rank(FindingKind.HIGH_RATIO, "pair", rows, ratios, "{:.3g} target characters per source character")
        self.rank(FindingKind.LOW_RATIO, "pair", rows, 1 / ratios, "{:.3g} source characters per target character")

    def check_tokens(self, side: str, num_tokens: TokenCounts, num_unknown: TokenCounts) -> None:
        """Count tokens and find lines with unknown ones.

        Args:
            side: src or tgt.
            num_tokens: number of tokens of each line, excluding eos.
            num_unknown: number of unknown tokens of each line.
        """
        self._count("tokens", side, num_tokens.tolist())
        unknown = num_unknown.astype(np.int64)  # signed, because `rank` negates them
        rows = np.flatnonzero(unknown)
        self.rank(FindingKind.UNKNOWN, side, rows, unknown, "{} unknown")

        counts = self.counts.side(side)
        counts.unknown = int(unknown.sum())
        if "words" in counts.lengths:
            counts.word_tokens = int(num_tokens.sum())

    def check_equality(self) -> dict[str, Keys]:
        """Find empty sides and copies; return the hashes for finding repeated lines and pairs."""
        src_lines, tgt_lines = self.texts
        stripped_src = list(map(str.strip, src_lines))
        stripped_tgt = list(map(str.strip, tgt_lines))
        is_blank_src = np.array([not line for line in stripped_src], np.bool_)
        is_blank_tgt = np.array([not line for line in stripped_tgt], np.bool_)
        blank_src_rows = np.flatnonzero(is_blank_src).tolist()
        blank_tgt_rows = np.flatnonzero(is_blank_tgt).tolist()
        self.find_rows(FindingKind.EMPTY, "src", blank_src_rows)
        self.find_rows(FindingKind.EMPTY, "tgt", blank_tgt_rows)

        is_equal = np.array(list(map(eq, stripped_src, stripped_tgt)), np.bool_)
        copied_rows = np.flatnonzero(is_equal & ~is_blank_src).tolist()
        self.find_rows(FindingKind.COPY, "pair", copied_rows)

        is_blank_pair = is_blank_src & is_blank_tgt
        src_keys = hash_keys(src_lines)
        tgt_keys = hash_keys(tgt_lines)
        pair_keys = duplicate_keys(self.texts, is_normalized=False)
        near_keys = duplicate_keys(self.texts, is_normalized=True)
        return {
            "src": np.where(is_blank_src, BLANK, src_keys),
            "tgt": np.where(is_blank_tgt, BLANK, tgt_keys),
            "pair": np.where(is_blank_pair, BLANK, pair_keys),
            "near": np.where(is_blank_pair, BLANK, near_keys),
        }

    def _count(self, unit: str, side: str, lengths: Iterable[int]) -> None:
        self.counts.side(side).lengths[unit] = Lengths(lengths)


# ---- whole sets -----------------------------------------------------------------------------------------------------


@dataclass
class _RepeatedTexts:
    """Lines or pairs that occur several times; the first `MAX_TRACKED` ones are ranked by their frequency."""

    kind: FindingKind
    side: str
    note: str
    """Description of the number of occurrences."""
    examples: dict[int, Example] = field(default_factory=dict)
    """Examples by the hash of the text."""

    def add(self, chunk: _Chunk, rows: Ints, keys: Keys) -> None:
        """Add texts of a chunk that occurred before.

        Args:
            chunk: the chunk.
            rows: indices of these texts in the chunk.
            keys: hashes of all texts of the chunk.
        """
        row_keys = keys[rows].tolist()
        for row, key in zip(rows.tolist(), row_keys, strict=True):
            example = self.examples.get(key)
            if example is not None:
                num_occurrences = example.rank + 1
                self.examples[key] = replace(example, rank=num_occurrences)
            elif len(self.examples) < MAX_TRACKED:
                second_occurrence = chunk.example(row, self.side, rank=2)
                self.examples[key] = second_occurrence

    def described_examples(self) -> list[Example]:
        """Return the examples with their numbers of occurrences."""
        examples: list[Example] = []
        for example in self.examples.values():
            note = self.note.format(int(example.rank))
            examples.append(replace(example, note=note))
        return examples


class _SetPass:
    """Checks one set, and looks up its lines in the sets that were checked earlier.

    Args:
        name: name of the set.
        sources: sources of the set, in order.
        data: the `data` section, for languages and filters.
        earlier: checked sets in which the lines of this set are looked up.
    """

    def __init__(self, name: str, sources: Sequence[Source], data: DataConfig, earlier: Sequence["_SetPass"]) -> None:
        self.name = name
        self.data = data
        self.sources = sources
        self.is_training = name == "train"
        languages = data.languages(sources[0])
        src, tgt = map(SideCounts, languages)
        self.result = SetCheck(name, src, tgt)
        self.earlier = list(earlier)
        self.overlaps = [Overlap(name, set_pass.name) for set_pass in earlier]

        columns = (*SIDES, "pair", "near")
        self.seen = {column: SeenKeys() for column in columns}
        """Hashes of the lines and pairs read so far; see `_CheckedChunk.hashes`."""

        self._duplicates = _RepeatedTexts(FindingKind.DUPLICATE, "pair", "occurs {} times")
        self._near_duplicates = _RepeatedTexts(FindingKind.NEAR_DUPLICATE, "pair", "occurs in {} spellings")
        self._several_targets = _RepeatedTexts(FindingKind.SEVERAL_TARGETS, "src", "has {} targets")
        self._sources_with_several_targets = SeenKeys()

        self._layouts: list[SourceLayout] = []
        """Layout of each source read so far."""
        self._kept = SeenKeys()
        """Keys of the pairs that the filters keep."""
        self._num_removed = Counter[str]()
        self._random = np.random.default_rng(0)

    def chunks(self) -> Iterator[_Chunk]:
        """Read the set."""
        for source in self.sources:
            count = SourceCount(describe(source))
            self.result.sources.append(count)
            yield from self._source_chunks(source, count)

    def _source_chunks(self, source: Source, count: SourceCount) -> Iterator[_Chunk]:
        """Read a source and count its pairs."""
        files = files_of(source) or [count.name]
        languages = self.data.languages(source)
        position = 0
        with open_reader(source, self.data) as reader:
            records = reader.take(PAIRS_AT_ONCE)
            while records.size:
                num_bytes = reader.position - position
                yield _Chunk(
                    records,
                    first_line=count.pairs + 1,
                    num_bytes=num_bytes,
                    src_file=files[0],
                    tgt_file=files[-1],
                    languages=languages,
                    is_training=self.is_training,
                )
                position += num_bytes
                count.pairs += records.size
                records = reader.take(PAIRS_AT_ONCE)

    def add(self, chunk: _Chunk, checked: _CheckedChunk) -> None:
        """Add the results of the next chunk."""
        self.result.merge(checked.counts)
        if chunk.first_line == 1:
            self._layouts.append(SourceLayout())
        self._layouts[-1].add(checked.layout, chunk.example)
        is_duplicate = self._add_duplicates(chunk, checked.hashes)
        self._add_several_targets(chunk, checked.hashes, is_duplicate)
        self._add_overlaps(chunk, checked.hashes)
        self._add_sample(chunk, checked)

    def _add_duplicates(self, chunk: _Chunk, hashes: dict[str, Keys]) -> Mask:
        """Find pairs that occurred before; return True for each pair that is exactly equal to an earlier one."""
        has_text = hashes["pair"] != BLANK
        is_duplicate = self.seen["pair"].add(hashes["pair"])
        is_near_duplicate = self.seen["near"].add(hashes["near"])
        duplicates = np.flatnonzero(is_duplicate & has_text)
        near_duplicates = np.flatnonzero(is_near_duplicate & ~is_duplicate & has_text)

        self._duplicates.add(chunk, duplicates, hashes["pair"])
        self._near_duplicates.add(chunk, near_duplicates, hashes["near"])
        self.result.find(FindingKind.DUPLICATE, "pair", len(duplicates))
        self.result.find(FindingKind.NEAR_DUPLICATE, "pair", len(near_duplicates))
        return is_duplicate

    def _add_several_targets(self, chunk: _Chunk, hashes: dict[str, Keys], is_duplicate: Mask) -> None:
        """Find sources that occurred before with another target; each source is counted once."""
        sources = hashes["src"]
        targets = hashes["tgt"]
        has_both_sides = (sources != BLANK) & (targets != BLANK)
        distinct = np.flatnonzero(has_both_sides & ~is_duplicate)
        is_known_source = self.seen["src"].add(sources[distinct])
        self.seen["tgt"].add(targets)

        rows = distinct[is_known_source]
        self._several_targets.add(chunk, rows, sources)
        is_counted = self._sources_with_several_targets.add(sources[rows])
        num_sources = int((~is_counted).sum())
        self.result.find(FindingKind.SEVERAL_TARGETS, "src", num_sources)

    def _add_overlaps(self, chunk: _Chunk, hashes: dict[str, Keys]) -> None:
        """Find lines and pairs that also occur in earlier sets."""
        (src_lines, tgt_lines), _ = chunk.parsed
        for overlap, earlier in zip(self.overlaps, self.earlier, strict=True):
            overlap.size += chunk.records.size
            for column, finding in overlap.found.items():
                keys = hashes[column]
                is_known = earlier.seen[column].contains(keys)
                rows = np.flatnonzero(is_known & (keys != BLANK)).tolist()
                # Long lines rank higher, because they are less likely to be equal by chance.
                lines = tgt_lines if column == "tgt" else src_lines
                examples: list[Example] = []
                for row in rows:
                    line_length = len(lines[row])
                    examples.append(chunk.example(row, column, rank=line_length))
                finding.add(len(rows), examples)

    def _add_sample(self, chunk: _Chunk, checked: _CheckedChunk) -> None:
        """Count the reasons for removal and, for each reason, keep the pairs with the lowest random ranks."""
        codes = checked.codes
        if self.is_training and self.data.filters.drop_duplicates:
            self._mark_duplicates(codes, checked.hashes)
        self._num_removed.update(count_reasons(codes))

        ranks = self._random.random(len(codes))
        for code in np.unique(codes).tolist():
            reason = "" if code == KEPT else reason_of(code).value
            sample = self.result.sample.setdefault(reason, [])
            rows = np.flatnonzero(codes == code)
            self._extend_sample(sample, chunk, rows, ranks)

    @staticmethod
    def _extend_sample(sample: list[Example], chunk: _Chunk, rows: Ints, ranks: NDArray[np.float64]) -> None:
        """Add these rows of a chunk to a sample, then keep the pairs with the lowest ranks, in order of their ranks."""
        is_full = len(sample) == NUM_SAMPLED
        limit = sample[-1].rank if is_full else 1.0
        candidates = rows[ranks[rows] < limit]
        order = np.argsort(ranks[candidates])
        for row in candidates[order[:NUM_SAMPLED]].tolist():
            rank = float(ranks[row])
            sample.append(chunk.example(row, rank=rank))
        sample.sort(key=lambda example: example.rank)
        del sample[NUM_SAMPLED:]

    def _mark_duplicates(self, codes: Codes, hashes: dict[str, Keys]) -> None:
        """Set the codes of kept pairs that are equal to an earlier kept pair."""
        column = "near" if self.data.filters.normalize_duplicates else "pair"
        keys = hashes[column]
        is_candidate = (codes == KEPT) & (keys != BLANK)
        kept = np.flatnonzero(is_candidate)
        is_repeated = self._kept.add(keys[kept])
        codes[kept[is_repeated]] = Reason.DUPLICATE.code

    def finish(self) -> SetCheck:
        """Return the result after the last chunk."""
        for repeated in (self._duplicates, self._near_duplicates, self._several_targets):
            key = (repeated.kind, repeated.side)
            finding = self.result.findings.get(key)
            if finding is not None:
                finding.add(0, repeated.described_examples())
        for layout in self._layouts:
            for layout_finding in layout.findings():
                self.result.add_finding(layout_finding)
        if self.is_training:
            self.result.removed = in_order(self._num_removed)
        self.result.finish()
        return self.result
