"""Test sets: where they come from, their translation, and the report that is kept of it."""

import json
import logging
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mtformer import __version__
from mtformer.config.data import DataConfig, Source
from mtformer.config.schema import EvaluationConfig
from mtformer.data.sources import languages, read_pairs
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError
from mtformer.evaluation.scores import METRICS, MetricName, Score, looks_tokenised, score
from mtformer.rundir import file_sha256, write_text

HYPOTHESES = "hypotheses.txt"
SCORES = "scores.json"
log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class EvalSet:
    """A test set; `references` holds one list of lines a reference."""

    name: str
    sources: list[str]
    references: list[list[str]]
    tgt_lang: str | None = None
    """None: the one that the translator is set to."""


@dataclass(frozen=True)
class Evaluation:
    """What a translator reached on a test set, and the folder that holds its hypotheses and scores."""

    name: str
    num_sentences: int
    seconds: float
    scores: list[Score]
    folder: Path


def source_set(name: str, source: Source, data: DataConfig) -> EvalSet:
    """A test set of the config, or two files of the user's; raises DataError when it cannot be read or is empty."""
    pairs = list(read_pairs(source, data))
    if not pairs:
        raise DataError(f"test set '{name}': it has no lines")
    return EvalSet(name, [src for src, _ in pairs], [[tgt for _, tgt in pairs]], languages(source, data)[1])


def config_sets(data: DataConfig) -> list[EvalSet]:
    """The test sets that a config names; in both directions if it says so."""
    sets = []
    for name, source in data.test.items():
        one = source_set(name, source, data)
        sets.append(one)
        if data.both_directions:
            src, tgt = languages(source, data)
            sets.append(EvalSet(f"{name}.{tgt}-{src}", one.references[0], [one.sources], src))
    return sets


def sacrebleu_set(testset: str, language_pair: str) -> EvalSet:
    """A test set by its name in sacreBLEU, such as `wmt14/full` and `en-de`; sacreBLEU fetches it and keeps it.

    Raises:
        DataError: when there is no such set or pair, or it cannot be fetched.
    """
    from sacrebleu import get_reference_files, get_source_file
    from sacrebleu.dataset import DATASETS

    if testset not in DATASETS:
        raise DataError(f"sacreBLEU has no test set '{testset}'; `sacrebleu --list` shows those it has")
    pairs = sorted(DATASETS[testset].langpairs)
    if language_pair not in pairs:
        raise DataError(f"sacreBLEU's {testset} has no '{language_pair}'; it has {', '.join(pairs)}")
    try:
        sources = _lines(get_source_file(testset, language_pair))
        references = [_lines(path) for path in get_reference_files(testset, language_pair)]
    except (Exception, SystemExit) as error:  # sacreBLEU exits on a damaged download and raises bare Exceptions.
        reason = " ".join(str(error).split())
        raise DataError(
            f"sacreBLEU could not fetch {testset} {language_pair}: {reason}; is there a network?"
        ) from error
    return EvalSet(f"{testset.replace('/', '_')}.{language_pair}", sources, references)


def evaluate(
    translator: Translator,
    test: EvalSet,
    config: EvaluationConfig,
    folder: Path,
    *,
    metrics: Sequence[MetricName] = METRICS,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Translates a test set by the translator's `decoding` settings, scores it, and saves both in `folder`.

    Args:
        translator: with the settings to be measured.
        test: the test set.
        config: the `evaluation` section.
        folder: gets hypotheses.txt and scores.json.
        metrics: which scores.
        progress: as in `Translator.translate`.
    """
    if any(looks_tokenised(references) for references in test.references):
        log.warning("%s: the references look tokenised; scores against them cannot be compared with others", test.name)
    start = time.perf_counter()
    found = translator.into(test.tgt_lang).translate(test.sources, progress=progress)
    hypotheses = [translation.text for translation in found]
    seconds = time.perf_counter() - start
    scores = score(hypotheses, test.references[0], config, metrics, test.references[1:])
    evaluation = Evaluation(test.name, len(hypotheses), seconds, scores, folder)
    write_text(folder / HYPOTHESES, "".join(f"{line}\n" for line in hypotheses))
    write_text(folder / SCORES, json.dumps(_report(evaluation, translator), indent=2, ensure_ascii=False) + "\n")
    return evaluation


def _report(evaluation: Evaluation, translator: Translator) -> dict[str, Any]:
    """All that one needs to know how the scores came about."""
    return {
        "name": evaluation.name,
        "num_sentences": evaluation.num_sentences,
        "seconds": round(evaluation.seconds, 2),
        "scores": [asdict(one) for one in evaluation.scores],
        "decoding": translator.decoding.model_dump(exclude={"validation_beam_size"}),
        "checkpoints": [{"file": str(path), "sha256": file_sha256(path)} for path in translator.weights],
        "device": translator.engine.device,
        "dtype": translator.engine.dtype,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "mtformer": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "sentencepiece", "sacrebleu")},
        },
    }


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.strip() for line in file]
