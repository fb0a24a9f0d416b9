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
from functools import cached_property
from importlib.util import find_spec
from itertools import count, islice
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
    verify,
    write_listing,
)
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import Tokenizer

SHARD_LINES = 2_000
BEAM_SIZE = 5
MIN_CHRF = 30.0
"""Minimum chrF2++ of the best translation against the reference; below it, one of the two is probably wrong."""
DISTILLED = "distilled.tsv"


def load_teachers(runs: Sequence[Path], student: Config) -> Translator:
    """Load the teachers: one with CTranslate2 if it is installed and can run the model, several as an ensemble.

    Raise ConfigError if a teacher does not translate the language pair of the student.
    """
    data, device = student.data, student.training.device
    if len(data.directions) > 1:
        raise ConfigError("data: the student has several directions; distill one direction at a time")
    if "distilled" in data.corpora:
        raise ConfigError("data.corpora.distilled: this name is for the translations of the teacher; choose another")
    teacher = None
    if len(runs) == 1 and find_spec("ctranslate2") and pick_device(device).type == "cpu":
        try:
            teacher = _with_search(Translator.load(runs[0], device=device, backend="ctranslate2"))
        except ConfigError as error:
            log.info("the teacher runs without CTranslate2: %s", error)
    teacher = teacher or _with_search(Translator.load(runs, device=device))
    its = teacher.data
    assert its is not None
    if (data.src_lang, data.tgt_lang) not in its.directions:
        own = f"{data.src_lang}-{data.tgt_lang}"
        raise ConfigError(f"{runs[0]}: translates {its.src_lang}-{its.tgt_lang}, but the student {own}")
    return teacher.into(data.tgt_lang)


def _with_search(teacher: Translator) -> Translator:
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
) -> Config:
    """Translate the student's training sources and monolingual text, and return the config that also trains on them.

    Of the n best translations of a line, the one with the highest chrF2++ against the reference is used, or the first
    if there is no reference. Copies of the source, flagged translations and low scores are left out. Finished shards
    are used again after an interruption. `load` loads the teacher, inside `use_ray` once in each process; `progress` is
    called with the number of lines finished since the last call.

    Raise DataError if a corpus cannot be read or no translation is left, ConfigError if the run directory contains
    translations by other teachers or of other text.
    """
    folder = run.corpus
    data = student.data
    path = folder / DISTILLED
    translate = _TranslateShard(load)
    for one in monolingual:
        read_lines(one)
    teachers = translate.teacher.weight_hashes
    states = path_states([*(name for source in data.sources for name in files_of(source)), *map(str, monolingual)])
    inputs = {"teachers": teachers, **_text_hashes(data, monolingual)}
    require_sources(data)  # what cannot be read is reported before the teacher translates
    for model in filter(None, (student.tokenizer.src_model, student.tokenizer.tgt_model)):
        Tokenizer.load(model)

    with lock_run(run):
        _check_record(run, inputs)
        if not path.exists():
            write_listing(folder / TEACHER, {}, **inputs)
            try:
                shards = _translate_shards(translate, _lines(data, monolingual), run, student, states, progress)
            except DataError:
                require_same_states(states)  # a change may be the cause of this error
                raise
            _require_same_text(data, monolingual, inputs)
            num_kept = sum(_require_text(shard).count(b"\n") for shard in shards)
            log.info("translations kept: %s of %s", f"{num_kept:,}", f"{sum(shard.num_lines for shard in shards):,}")
            if num_kept:
                _join(shards, path, inputs)
        for one in folder.glob("[0-9]*.tsv"):
            one.unlink()
        if not path.exists():
            raise DataError(f"{run.path}: no translation is good enough; check the teacher with eval")
    corpora = {**data.corpora, "distilled": CorpusConfig(sources=[TsvFile(tsv=str(path.resolve()))])}
    return student.model_copy(update={"data": data.model_copy(update={"corpora": corpora})})


# ---- the record -----------------------------------------------------------------------------------------------------


def _text_hashes(data: DataConfig, monolingual: Sequence[Path]) -> dict[str, list[str]]:
    """Return the checksums of the text that is translated."""
    return {
        "corpora": [source_fingerprint(source, data) for source in data.sources],
        "monolingual": [file_sha256(path) for path in monolingual],
    }


def _require_same_text(data: DataConfig, monolingual: Sequence[Path], inputs: dict[str, list[str]]) -> None:
    """Raise DataError if the text has changed since its checksums were computed, whatever the times of its files.

    The shards are kept. They name the lines that they translate, so they are never used for other text.
    """
    for source, fingerprint in zip(data.sources, inputs["corpora"], strict=True):
        require_same_contents(source, data, fingerprint)
    for path, sha256 in zip(monolingual, inputs["monolingual"], strict=True):
        if file_sha256(path) != sha256:
            raise DataError(CHANGED.format(path))


def _check_record(run: RunDir, inputs: dict[str, list[str]]) -> None:
    """Raise an error if the folder has translations of other text or by other teachers, or damaged complete ones."""
    folder = run.corpus
    record = folder / TEACHER
    is_complete = (folder / DISTILLED).exists()
    if not is_complete and not (record.exists() and any(folder.glob("[0-9]*.tsv"))):
        return
    if is_complete and not record.exists():
        raise DamagedError(record, "missing", TEACHER)

    is_old = is_without_checksums(record)
    try:
        made_with = read_json(record) if is_old else read_meta(folder, TEACHER)
    except DamagedError as error:
        if is_complete:
            what = f"{error.what}, so the translations may be made with other teachers or corpora"
            raise DamagedError(record, what, TEACHER) from error
        log.warning("%s: %s; it is written again", folder, error.what)
        return
    if any(made_with.get(name) != value for name, value in inputs.items()):
        raise ConfigError(f"{run.path}: made with other teachers or corpora; delete it, or choose another folder")
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
    pairs: list[tuple[str, str | None]]


def _lines(data: DataConfig, monolingual: Sequence[Path]) -> Iterator[tuple[str, str | None]]:
    """Yield the sources with their references, and then the monolingual lines, which have none."""
    for source in data.sources:
        yield from read_pairs(source, data)
    for path in monolingual:
        for line in read_lines(path):
            yield line, None


def _translate_shards(
    translate: "_TranslateShard",
    lines: Iterator[tuple[str, str | None]],
    run: RunDir,
    student: Config,
    states: dict[str, FileState],
    progress: Callable[[int], object],
) -> list[_ShardFile]:
    """Translate the lines of missing and damaged shards, and return all shards.

    Raise DataError if a file of the text has changed since it had these states.
    """
    teachers = translate.teacher.weight_hashes
    files = list[_ShardFile]()

    def missing_shards() -> Iterator[_Shard]:
        for number in count():
            pairs = list(islice(lines, SHARD_LINES))
            require_same_states(states)
            if not pairs:
                return
            file = _ShardFile(run.corpus / f"{number:05}.tsv", len(pairs), json_sha256([teachers, pairs]))
            files.append(file)
            if _read_shard(file) is not None:
                progress(len(pairs))
                continue
            if file.path.exists():
                log.warning("%s: damaged, or not of this text and teacher; its lines are translated again", file.path)
            yield _Shard(file, pairs)

    with Workers(translate, 1, student.training.device) as workers:
        for shard, kept in workers.map(missing_shards()):
            _write_shard(shard.file, kept)
            progress(len(shard.pairs))
    for extra in sorted({*run.corpus.glob("[0-9]*.tsv")}.difference(file.path for file in files)):
        log.warning("%s: not a shard of this text; it is not used", extra)
    return files


def _write_shard(file: _ShardFile, kept: Sequence[tuple[str, str]]) -> None:
    """Write sources and translations after a line with the key of the shard and their SHA-256."""
    text = "".join(f"{src}\t{text}\n" for src, text in kept).encode()
    header = {"key": file.key, "sha256": hashlib.sha256(text).hexdigest()}
    with atomic_file(file.path) as temporary:
        temporary.write_bytes(json.dumps(header).encode() + b"\n" + text)


def _read_shard(file: _ShardFile) -> bytes | None:
    """Return the sources and translations of a shard; None if the file is missing, damaged, or has another key."""
    try:
        header, _, text = file.path.read_bytes().partition(b"\n")
        is_intact = parse_json(header) == {"key": file.key, "sha256": hashlib.sha256(text).hexdigest()}
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
        if self._weight_hashes is not None and list(teacher.weight_hashes) != list(self._weight_hashes):
            raise CheckpointError(CHANGED.format(", ".join(map(str, teacher.weights))))
        return teacher

    def __call__(self, shard: _Shard, num_threads: int) -> list[tuple[str, str]]:
        sources = [tsv_cell(src) for src, _ in shard.pairs]
        found = self.teacher.translate(sources, n_best=BEAM_SIZE)
        rows = zip(sources, found, (ref for _, ref in shard.pairs), strict=True)
        return [(src, text) for src, n_best, ref in rows if (text := best_text(src, n_best, ref)) is not None]


def best_text(src: str, n_best: Translation, reference: str | None) -> str | None:
    """Return the best translation of a line (see `distilled_config`), or None if no translation is good."""
    texts = [one.text for one in (n_best, *n_best.alternatives) if one.text and not one.flags]
    texts = [text for text in texts if text.casefold() != src.casefold()]
    if reference is None or not texts:
        return texts[0] if texts else None
    scores = sentence_chrf(texts, [reference] * len(texts))
    return texts[scores.index(max(scores))] if max(scores) >= MIN_CHRF else None
