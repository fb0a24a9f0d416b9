"""Sequence-level knowledge distillation (Kim and Rush 2016): a student learns from the translations of its teachers.

NEW/corpus/teacher.json       teachers, corpora and search of the translations
NEW/corpus/00000.tsv, ...     finished shards, while the teachers translate
NEW/corpus/distilled.tsv      all sources and their translations
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from mtformer.config.data import CorpusConfig, TsvFile
from mtformer.config.schema import Config
from mtformer.data.corpus.readers import read_lines
from mtformer.data.corpus.sources import read_pairs, require_sources, source_fingerprint
from mtformer.decoding.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.device import pick_device
from mtformer.errors import ConfigError, DataError, log
from mtformer.evaluation.scores import sentence_chrf
from mtformer.experiment.run_state import lock_run
from mtformer.files import atomic_file, file_sha256, write_text
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import Tokenizer
from mtformer.workers import Workers

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
    folder, data = run.corpus, student.data
    path, translate = folder / DISTILLED, _TranslateShard(load)
    for one in monolingual:
        read_lines(one)
    values = {
        "teachers": [file_sha256(path) for path in translate.teacher.weights],
        "corpora": [source_fingerprint(source, data) for source in data.sources],
        "monolingual": [file_sha256(path) for path in monolingual],
    }
    require_sources(data)  # what cannot be read is reported before the teacher translates
    for model in filter(None, (student.tokenizer.src_model, student.tokenizer.tgt_model)):
        Tokenizer.load(model)
    made_with = json.dumps(values, indent=2) + "\n"
    with lock_run(run):
        is_begun = path.exists() or any(folder.glob("[0-9]*.tsv"))
        record = folder / "teacher.json"
        if is_begun and record.exists() and record.read_text(errors="replace") != made_with:
            raise ConfigError(f"{run.path}: made with other teachers or corpora; delete it, or choose another folder")
        write_text(record, made_with)
        if not path.exists():
            pairs = chain.from_iterable(read_pairs(source, data) for source in data.sources)
            lines = chain(pairs, ((line, None) for path in monolingual for line in read_lines(path)))
            finished = list[int]()

            def advance(num_lines: int) -> None:
                finished.append(num_lines)
                progress(num_lines)

            with Workers(translate, 1, student.training.device) as workers:
                for shard, kept in workers.map(_missing_shards(lines, folder, advance)):
                    write_text(shard.path, "".join(f"{src}\t{text}\n" for src, text in kept))
                    advance(len(shard.pairs))
            files = sorted(folder.glob("[0-9]*.tsv"), key=lambda path: (len(path.name), path))
            num_kept = sum(one.read_bytes().count(b"\n") for one in files)
            log.info("translations kept: %s of %s", f"{num_kept:,}", f"{sum(finished):,}")
            if num_kept:
                with atomic_file(path) as temporary, temporary.open("wb") as file:
                    for one in files:
                        file.write(one.read_bytes())
        for one in folder.glob("[0-9]*.tsv"):
            one.unlink()
        if not path.exists():
            raise DataError(f"{run.path}: no translation is good enough; check the teacher with eval")
    corpora = {**data.corpora, "distilled": CorpusConfig(sources=[TsvFile(tsv=str(path.resolve()))])}
    return student.model_copy(update={"data": data.model_copy(update={"corpora": corpora})})


class _Shard(NamedTuple):
    """Consecutive sources with their references, and the file of their translations."""

    path: Path
    pairs: list[tuple[str, str | None]]


def _missing_shards(
    lines: Iterator[tuple[str, str | None]], folder: Path, progress: Callable[[int], object]
) -> Iterator[_Shard]:
    for number in count():
        shard = _Shard(folder / f"{number:05}.tsv", list(islice(lines, SHARD_LINES)))
        if not shard.pairs:
            return
        if shard.path.exists():
            progress(len(shard.pairs))
        else:
            yield shard


class _TranslateShard:
    """Function that returns the kept sources and translations of a shard."""

    def __init__(self, load: Callable[[], Translator]) -> None:
        self._load = load

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._load,)  # without the teacher

    @cached_property
    def teacher(self) -> Translator:
        return self._load()

    def __call__(self, shard: _Shard, num_threads: int) -> list[tuple[str, str]]:
        sources = [" ".join(src.split()) for src, _ in shard.pairs]
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
