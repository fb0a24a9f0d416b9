"""Sequence-level knowledge distillation (Kim and Rush 2016): a student learns from the translations of its teachers.

NEW/corpus/teacher.json       checksums of the teachers, of the corpora, and of distilled.tsv once it is complete
NEW/corpus/00000.tsv, ...     finished shards, while the teachers translate; see `_write_shard`
NEW/corpus/distilled.tsv      all sources and their translations

A file is used again only if its checksum is right: a damaged shard is translated again, and a damaged distilled.tsv is
refused, here and whenever a run trains on it (`mtformer.data.corpus.sources.require_recorded`).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from mtformer.cluster.workers import Workers
from mtformer.config.data import CorpusConfig, DataConfig, TsvFile
from mtformer.config.schema import Config
from mtformer.data.corpus.readers import read_lines, tsv_cell
from mtformer.data.corpus.sources import (
    CHANGED,
    files_of,
    is_without_checksums,
    path_states,
    read_pairs,
    require_same_contents,
    require_same_states,
    require_sources,
    source_fingerprint,
)
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.device import pick_device
from mtformer.enums import Backend
from mtformer.errors import CheckpointError, ConfigError, DataError, log
from mtformer.evaluation.scores import sentence_chrf
from mtformer.experiment.run_state import lock_run
from mtformer.files import (
    TEACHER,
    DamagedError,
    FileState,
    atomic_file,
    file_sha256,
    json_sha256,
    parse_json,
    read_json,
    read_meta,
    require_file,
    verify,
    write_listing,
)
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import Tokenizer

SHARD_LINES = 2_000
"""Number of lines in a shard."""
BEAM_SIZE = 5
"""Beam size of the teacher, and number of translations of a line from which the best one is chosen."""
MIN_CHRF = 30.0
"""Minimum chrF2++ of the best translation against the reference; below it, one of the two is probably wrong."""
DISTILLED = "distilled.tsv"
"""File with all sources and their translations."""
SHARDS = "[0-9]*.tsv"
"""Pattern of the names of shards."""
Line = tuple[str, str | None]
"""Source and its reference, if it has one."""


def load_teachers(runs: Sequence[Path], student: Config) -> Translator:
    """Load the teachers: one with CTranslate2 if it is installed and can run the model, several as an ensemble.

    Raise ConfigError if a teacher does not translate the language pair of the student.
    """
    data = student.data
    if len(data.directions) > 1:
        raise ConfigError(
            "data: the student has several directions; remove all but one, as distill translates one at a time"
        )
    if "distilled" in data.corpora:
        raise ConfigError("data.corpora.distilled: this name is for the translations of the teacher; choose another")

    device = student.training.device
    teacher = None
    has_ctranslate2 = find_spec("ctranslate2") is not None
    if len(runs) == 1 and has_ctranslate2 and pick_device(device).type == "cpu":
        try:
            teacher = _with_search(Translator.load(runs[0], device=device, backend=Backend.CTRANSLATE2))
        except ConfigError as error:
            log.info("the teacher runs without CTranslate2: %s", error)
    if teacher is None:
        teacher = _with_search(Translator.load(runs, device=device))

    teacher_data = teacher.data
    assert teacher_data is not None
    if (data.src_lang, data.tgt_lang) not in teacher_data.directions:
        raise ConfigError(
            f"{runs[0]}: translates {teacher_data.src_lang}-{teacher_data.tgt_lang}, but the student "
            f"{data.src_lang}-{data.tgt_lang}; choose another teacher, or other data for the student"
        )
    return teacher.into(data.tgt_lang)


def _with_search(teacher: Translator) -> Translator:
    """Return the teacher with the beam size of a distillation."""
    settings = teacher.decoding
    early_stopping = settings.early_stopping
    teacher = teacher.with_decoding(settings.for_validation(), beam_size=BEAM_SIZE, early_stopping=early_stopping)
    teacher.calibration = None  # it rates only the best translation of a line, which would then lose to the others
    return teacher


def distilled_config(
    load: Callable[[], Translator],
    student: Config,
    monolingual: Sequence[Path],
    run: RunDir,
    progress: Callable[[int], object],
    start: Callable[[int], object] = lambda num_lines: None,
) -> Config:
    """Translate the student's training sources and monolingual text, and return the config that also trains on them.

    Of the n best translations of a line, the one with the highest chrF2++ against the reference is used, or the first
    if there is no reference. Copies of the source, flagged translations and low scores are left out. Finished shards
    are used again after an interruption.

    Args:
        load: function that loads the teachers; inside `use_ray`, it is called once in each process.
        student: config of the student.
        monolingual: files of more text to translate.
        run: run directory of the student.
        progress: function that is called with the number of lines finished since the last call.
        start: function that is called with the number of lines before the translation, or with 0 if it is complete.

    Raise DataError if a corpus cannot be read or no translation is left, ConfigError if the run directory contains
    translations by other teachers or of other text.
    """
    translate = _TranslateShard(load)
    for path in monolingual:
        read_lines(path)  # a wrong file is refused before the teacher is loaded
    teachers = translate.teacher.weight_hashes
    text = _Text.open(student.data, monolingual)
    inputs = {"teachers": teachers, **text.hashes}
    _require_readable(student)

    distilled = run.corpus / DISTILLED
    with lock_run(run):
        _check_record(run, inputs)
        num_lines = 0 if distilled.exists() else sum(1 for _ in text.lines())
        start(num_lines)
        if not distilled.exists():
            write_listing(run.corpus / TEACHER, {}, **inputs)
            _translate_text(translate, text, run, student.training.device, inputs, progress)
        for shard in run.corpus.glob(SHARDS):
            shard.unlink()
        if not distilled.exists():
            raise DataError(
                f"{run.path}: no translation is good enough to train on; check the teacher with `mtformer eval`"
            )

    corpus = CorpusConfig(sources=[TsvFile(tsv=str(distilled.resolve()))])
    return student.with_values({"data.corpora.distilled": corpus})


def _require_readable(student: Config) -> None:
    """Raise an error that would otherwise end the training of the student, after the teacher has translated."""
    require_sources(student.data)
    for model in (student.tokenizer.src_model, student.tokenizer.tgt_model):
        if model is not None:
            Tokenizer.load(model)


def _translate_text(
    translate: "_TranslateShard",
    text: "_Text",
    run: RunDir,
    device: str,
    inputs: dict[str, list[str]],
    progress: Callable[[int], object],
) -> None:
    """Write distilled.tsv, unless no translation is good; parameters as in `distilled_config` and `_check_record`."""
    try:
        shards = _translate_shards(translate, text, run.corpus, device, progress)
    except DataError:
        text.require_same_states()  # a change may be the cause of this error
        raise
    text.require_same_contents()

    num_lines = sum(shard.num_lines for shard in shards)
    num_kept = sum(_require_text(shard).count(b"\n") for shard in shards)
    log.info("translations kept: %s of %s", f"{num_kept:,}", f"{num_lines:,}")
    if num_kept:
        _join(shards, run.corpus / DISTILLED, inputs)


# ---- the text and its record ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Text:
    """The text that is translated, with what identifies its contents."""

    data: DataConfig
    """Training corpora of the student."""
    monolingual: Sequence[Path]
    states: dict[str, FileState]
    """Size and time of each file."""
    hashes: dict[str, list[str]]
    """Checksums of the `corpora` and the `monolingual` files."""

    @classmethod
    def open(cls, data: DataConfig, monolingual: Sequence[Path]) -> "_Text":
        """Compute the checksums of the files."""
        paths = list(chain.from_iterable(map(files_of, data.sources)))
        paths += map(str, monolingual)
        states = path_states(paths)
        fingerprints = [source_fingerprint(source, data) for source in data.sources]
        sha256_of_files = [file_sha256(path) for path in monolingual]
        hashes = {"corpora": fingerprints, "monolingual": sha256_of_files}
        return cls(data, monolingual, states, hashes)

    def lines(self) -> Iterator[Line]:
        """Yield the sources with their references, and then the monolingual lines, which have none."""
        for source in self.data.sources:
            yield from read_pairs(source, self.data)
        for path in self.monolingual:
            for line in read_lines(path):
                yield line, None

    def require_same_states(self) -> None:
        """Raise DataError if a file has another size or time than when its checksum was computed."""
        require_same_states(self.states)

    def require_same_contents(self) -> None:
        """Raise DataError if the text has changed since its checksums were computed, whatever the times of its files.

        The shards are kept. They name the lines that they translate, so they are never used for other text.
        """
        fingerprints = self.hashes["corpora"]
        for source, fingerprint in zip(self.data.sources, fingerprints, strict=True):
            require_same_contents(source, self.data, fingerprint)

        sha256_of_files = self.hashes["monolingual"]
        for path, sha256 in zip(self.monolingual, sha256_of_files, strict=True):
            if file_sha256(path) != sha256:
                raise DataError(CHANGED.format(path))


def _check_record(run: RunDir, inputs: dict[str, list[str]]) -> None:
    """Raise an error if the folder has translations of other text or by other teachers, or damaged complete ones.

    Args:
        run: run directory of the student.
        inputs: checksums of the teachers and of the text, by their names in teacher.json.
    """
    folder = run.corpus
    record = folder / TEACHER
    is_complete = (folder / DISTILLED).exists()
    has_shards = record.exists() and any(folder.glob(SHARDS))
    if not is_complete and not has_shards:
        return
    if is_complete and not record.exists():
        raise DamagedError(record, "missing", TEACHER)

    is_old = is_without_checksums(record)
    try:
        made_with = read_json(record) if is_old else read_meta(folder, TEACHER)
    except DamagedError as error:
        if is_complete:
            problem = f"{error.what}, so the translations may be made with other teachers or corpora"
            raise DamagedError(record, problem, TEACHER) from error
        log.warning("%s: %s; it is written again", folder, error.what)
        return
    recorded_inputs = {name: made_with.get(name) for name in inputs}
    if recorded_inputs != inputs:
        raise ConfigError(
            f"{run.path}: made with other teachers or corpora; give the same ones again, delete the folder, or choose "
            "another one with --run-dir"
        )

    if is_complete and not is_old:
        verify(folder, DISTILLED, listing=TEACHER)


# ---- shards ---------------------------------------------------------------------------------------------------------


class _ShardFile(NamedTuple):
    """The file of the translations of consecutive lines."""

    path: Path
    num_lines: int
    key: str
    """Checksum of the teachers, the sources and the references."""


class _Shard(NamedTuple):
    """Consecutive sources with their references, and the file of their translations."""

    file: _ShardFile
    lines: list[Line]


def _translate_shards(
    translate: "_TranslateShard", text: _Text, folder: Path, device: str, progress: Callable[[int], object]
) -> list[_ShardFile]:
    """Translate the lines of missing and damaged shards, and return all shards.

    Raise DataError if a file of the text has changed since its checksum was computed.
    """
    files: list[_ShardFile] = []

    def missing_shards() -> Iterator[_Shard]:
        for shard in _shards(text, translate.teacher.weight_hashes, folder):
            path = shard.file.path
            files.append(shard.file)
            if _read_shard(shard.file) is not None:
                progress(len(shard.lines))
                continue
            if path.exists():
                log.warning("%s: damaged, or not of this text and teacher; its lines are translated again", path)
            yield shard

    with Workers(translate, 1, device) as workers:
        for shard, kept in workers.map(missing_shards()):
            _write_shard(shard.file, kept)
            progress(len(shard.lines))

    used_paths = {file.path for file in files}
    extra_paths = set(folder.glob(SHARDS)) - used_paths
    for path in sorted(extra_paths):
        log.warning("%s: not a shard of this text; it is not used", path)
    return files


def _shards(text: _Text, teachers: list[str], folder: Path) -> Iterator[_Shard]:
    """Yield the shards of the text; `teachers` are the checksums of the teachers' weights."""
    lines = text.lines()
    for number in count():
        lines_of_shard = list(islice(lines, SHARD_LINES))
        text.require_same_states()
        if not lines_of_shard:
            return
        key = json_sha256([teachers, lines_of_shard])
        path = folder / f"{number:05}.tsv"
        file = _ShardFile(path, len(lines_of_shard), key)
        yield _Shard(file, lines_of_shard)


def _write_shard(file: _ShardFile, kept: Sequence[tuple[str, str]]) -> None:
    """Write sources and translations after a line with the key of the shard and their SHA-256."""
    lines = [f"{src}\t{translation}\n" for src, translation in kept]
    text = "".join(lines).encode()
    header = json.dumps(_header(file, text)).encode()
    with atomic_file(file.path) as temporary:
        temporary.write_bytes(header + b"\n" + text)


def _header(file: _ShardFile, text: bytes) -> dict[str, str]:
    """Return the contents of the first line of a shard with this text."""
    return {"key": file.key, "sha256": hashlib.sha256(text).hexdigest()}


def _read_shard(file: _ShardFile) -> bytes | None:
    """Return the sources and translations of a shard; None if the file is missing, damaged, or has another key."""
    try:
        require_file(file.path)
        header, _, text = file.path.read_bytes().partition(b"\n")
        is_intact = parse_json(header) == _header(file, text)
    except (OSError, ValueError):
        return None
    return text if is_intact else None


def _require_text(file: _ShardFile) -> bytes:
    """Return the sources and translations of a shard; raise DataError if it was damaged after it was written."""
    text = _read_shard(file)
    if text is None:
        raise DataError(f"{file.path}: damaged; repeat the command, which translates its lines again")
    return text


def _join(shards: Sequence[_ShardFile], path: Path, inputs: dict[str, list[str]]) -> None:
    """Write the translations of all shards to one file, and record its checksum."""
    with atomic_file(path) as temporary:
        digest = hashlib.sha256()
        with temporary.open("wb") as file:
            for shard in shards:
                text = _require_text(shard)
                digest.update(text)
                file.write(text)
        # The checksum is recorded first, so that after a kill the file is either missing or recorded.
        write_listing(path.parent / TEACHER, {path.name: digest.hexdigest()}, **inputs)


class _TranslateShard:
    """Function that returns the kept sources and translations of a shard."""

    def __init__(self, load: Callable[[], Translator], weight_hashes: Sequence[str] | None = None) -> None:
        self._load = load
        self._weight_hashes = weight_hashes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._load, self.teacher.weight_hashes)  # without the teacher

    @cached_property
    def teacher(self) -> Translator:
        """The teacher; raise CheckpointError if it is not that of the process that started this one."""
        teacher = self._load()
        if self._weight_hashes is None:
            return teacher
        if list(teacher.weight_hashes) != list(self._weight_hashes):
            files = ", ".join(map(str, teacher.weights))
            raise CheckpointError(CHANGED.format(files))
        return teacher

    def __call__(self, shard: _Shard, num_threads: int) -> list[tuple[str, str]]:
        sources = [tsv_cell(source) for source, _ in shard.lines]
        translations = self.teacher.translate(sources, n_best=BEAM_SIZE)

        references = [reference for _, reference in shard.lines]
        kept: list[tuple[str, str]] = []
        for source, n_best, reference in zip(sources, translations, references, strict=True):
            text = best_text(source, n_best, reference)
            if text is not None:
                kept.append((source, text))
        return kept


def best_text(source: str, n_best: Translation, reference: str | None) -> str | None:
    """Return the best translation of a line (see `distilled_config`), or None if no translation is good.

    Args:
        source: the line.
        n_best: the first of its n best translations, with the others in `alternatives`.
        reference: translation of the line in the training data; None for monolingual text.
    """
    texts: list[str] = []
    for hypothesis in (n_best, *n_best.alternatives):
        is_copy = hypothesis.text.casefold() == source.casefold()
        if hypothesis.text and not hypothesis.flags and not is_copy:
            texts.append(hypothesis.text)
    if not texts:
        return None
    if reference is None:
        return texts[0]

    scores = sentence_chrf(texts, [reference] * len(texts))
    best_score = max(scores)
    if best_score < MIN_CHRF:
        return None
    return texts[scores.index(best_score)]
