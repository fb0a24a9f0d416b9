"""Dev translations over time, and the best and worst test translations, with differences from the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, TypeVar

from mtformer.errors import DataError
from mtformer.evaluation.card import read_texts
from mtformer.evaluation.scores import UNSPACED, for_language, sentence_chrf
from mtformer.experiment.runs import RunContents

NUM_SENTENCES = 8
"""Number of worst sentences, and of best sentences, that are shown for each test set."""
MAX_VALIDATIONS = 12
"""Maximum number of validations whose dev translations are shown, evenly spaced over the run."""
T = TypeVar("T")
Spans = list[tuple[str, str]]
"""(mark, text) of each part of a line: "extra" (not in the reference), "missing" (not in the translation) or ""."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of a test set with its translation."""

    source: str
    reference: str
    hypothesis: str
    chrf: float
    """chrF2++ of the hypothesis."""
    tgt_lang: str | None = None


def judge(run: RunContents) -> dict[str, list[Sentence]]:
    """Return the sentences of each test set, worst first; add a line to `run.unread` for each unreadable test set."""
    sentences_of = {}
    for name, card in run.scores.items():
        try:
            test, hypotheses = read_texts(run.run.evaluation(name), card)
        except DataError as error:
            run.unread.append(f"sentences of {name}: {error}")
            continue
        chrf = sentence_chrf(hypotheses, test.references[0], run.evaluation.lowercase)
        rows = zip(test.sources, test.references[0], hypotheses, chrf, strict=True)
        sentences = [Sentence(*row, card.tgt_lang) for row in rows]
        sentences_of[name] = sorted(sentences, key=lambda sentence: sentence.chrf)
    return sentences_of


def compares_characters(run: RunContents) -> bool:
    """Return True if the target language is written without spaces between words."""
    tgt_lang = run.config.data.tgt_lang if run.config is not None else None
    return for_language(run.evaluation, tgt_lang).bleu_tokenizer in UNSPACED


def best_and_worst(sentences: dict[str, list[Sentence]], unspaced: bool) -> list[dict[str, Any]]:
    """Return the worst and best sentences of each test set by chrF2++, excluding those equal to the reference."""
    sets = []
    for name, worst_first in sentences.items():
        different = [sentence for sentence in worst_first if sentence.hypothesis != sentence.reference]
        worst = different[:NUM_SENTENCES]
        others = different[len(worst) :]
        best = others[-NUM_SENTENCES:][::-1]

        entries = {
            "name": name,
            "worst": [_entry(sentence, unspaced) for sentence in worst],
            "best": [_entry(sentence, unspaced) for sentence in best],
            "num_sentences": len(worst_first),
            "num_equal": len(worst_first) - len(different),
        }
        sets.append(entries)
    return sets


def _entry(sentence: Sentence, unspaced: bool) -> dict[str, Any]:
    """Return a sentence for the template, with marks where the translation differs from the reference."""
    hypothesis, reference = mark(sentence.hypothesis, sentence.reference, unspaced)
    return {"chrf": sentence.chrf, "source": sentence.source, "reference": reference, "hypothesis": hypothesis}


def over_time(samples: Sequence[dict[str, Any]], unspaced: bool) -> dict[str, Any] | None:
    """Return how the translation of each dev sentence of samples.jsonl changed; None if there are none."""
    validations = choose_evenly(samples, MAX_VALIDATIONS)
    hypotheses_of: dict[tuple[str, str], list[tuple[int, str]]] = {}
    """(step, hypothesis) of each validation, by source and reference."""
    for record in validations:
        step = int(record["step"])
        for source, reference, hypothesis in record["samples"]:
            hypotheses_of.setdefault((source, reference), []).append((step, hypothesis))
    if not hypotheses_of:
        return None

    sentences = []
    for (source, reference), hypotheses in hypotheses_of.items():
        rows = _changes_over_time(hypotheses, reference, unspaced)
        sentences.append({"source": source, "reference": reference, "rows": rows})
    return {"sentences": sentences, "num_shown": len(validations), "num_validations": len(samples)}


def _changes_over_time(
    hypotheses: Sequence[tuple[int, str]], reference: str, unspaced: bool
) -> list[tuple[str, Spans]]:
    """Return the steps, as text, and the marked translation; validations with the same translation share a row."""
    rows = []
    for hypothesis, group in groupby(hypotheses, key=lambda pair: pair[1]):
        steps = [step for step, _ in group]
        steps_text = f"{steps[0]:,}"
        if len(steps) > 1:
            steps_text += f" to {steps[-1]:,}"
        marked_hypothesis, _ = mark(hypothesis, reference, unspaced)
        rows.append((steps_text, marked_hypothesis))
    return rows


def choose_evenly(items: Sequence[T], number: int) -> list[T]:
    """Return `number` of the items, evenly spaced, including the first and the last one."""
    if len(items) <= number:
        return list(items)
    positions = [round(n * (len(items) - 1) / (number - 1)) for n in range(number)]
    return [items[position] for position in positions]


def mark(hypothesis: str, reference: str, unspaced: bool = False) -> tuple[Spans, Spans]:
    """Mark the words, or the characters if `unspaced`, that only one of the two texts has at that position."""
    hyp_units = list(hypothesis) if unspaced else hypothesis.split()
    ref_units = list(reference) if unspaced else reference.split()
    space = "" if unspaced else " "
    hyp_spans: Spans = []
    ref_spans: Spans = []

    def add(spans: Spans, name: str, units: Sequence[str]) -> None:
        if units and spans:
            spans.append(("", space))
        if units:
            spans.append((name, space.join(units)))

    matcher = SequenceMatcher(None, hyp_units, ref_units, autojunk=False)
    for kind, hyp_start, hyp_end, ref_start, ref_end in matcher.get_opcodes():
        is_equal = kind == "equal"
        add(hyp_spans, "" if is_equal else "extra", hyp_units[hyp_start:hyp_end])
        add(ref_spans, "" if is_equal else "missing", ref_units[ref_start:ref_end])
    return hyp_spans, ref_spans
