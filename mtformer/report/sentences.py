"""Dev translations over time, and the best and worst test translations, with differences from the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

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


class DevTranslation(NamedTuple):
    """The translation of a dev sentence at a validation."""

    step: int
    hypothesis: str


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
        references = test.references[0]
        chrf = sentence_chrf(hypotheses, references, run.evaluation.lowercase)
        rows = zip(test.sources, references, hypotheses, chrf, strict=True)
        sentences = [Sentence(*row, card.tgt_lang) for row in rows]
        sentences_of[name] = sorted(sentences, key=lambda sentence: sentence.chrf)
    return sentences_of


def compares_characters(run: RunContents, references: Sequence[str] = ()) -> bool:
    """Return True if the target language is written without spaces between words.

    Args:
        run: contents of a run.
        references: text in this language, whose script decides if the language code does not name one.
    """
    tgt_lang = run.config.data.tgt_lang if run.config is not None else None
    evaluation = for_language(run.evaluation, tgt_lang, references)
    return evaluation.bleu_tokenizer in UNSPACED


def best_and_worst(sentences: dict[str, list[Sentence]], unspaced: bool) -> list[dict[str, Any]]:
    """Return the worst and best sentences of each test set by chrF2++, excluding those equal to the reference."""
    sets = []
    for name, worst_first in sentences.items():
        different = [sentence for sentence in worst_first if sentence.hypothesis != sentence.reference]
        worst = different[:NUM_SENTENCES]
        not_worst = different[len(worst) :]  # each sentence is shown once
        best = not_worst[-NUM_SENTENCES:]

        entries = {
            "name": name,
            "worst": [_entry(sentence, unspaced) for sentence in worst],
            "best": [_entry(sentence, unspaced) for sentence in reversed(best)],
            "num_sentences": len(worst_first),
            "num_equal": len(worst_first) - len(different),
        }
        sets.append(entries)
    return sets


def _entry(sentence: Sentence, unspaced: bool) -> dict[str, Any]:
    """Return a sentence for the template, with marks where the translation differs from the reference."""
    hypothesis, reference = mark(sentence.hypothesis, sentence.reference, unspaced)
    return {
        "chrf": sentence.chrf,
        "source": sentence.source,
        "reference": reference,
        "hypothesis": hypothesis,
    }


def over_time(samples: Sequence[dict[str, Any]], unspaced: bool) -> dict[str, Any] | None:
    """Return how the translation of each dev sentence of samples.jsonl changed; None if there are none."""
    validations = choose_evenly(samples, MAX_VALIDATIONS)
    translations_of: dict[tuple[str, str], list[DevTranslation]] = {}
    """The translation at each validation, by source and reference."""
    for record in validations:
        step = int(record["step"])
        for source, reference, hypothesis in record["samples"]:
            translations = translations_of.setdefault((source, reference), [])
            translations.append(DevTranslation(step, hypothesis))
    if not translations_of:
        return None

    sentences = []
    for (source, reference), translations in translations_of.items():
        rows = _changes_over_time(translations, reference, unspaced)
        sentences.append({"source": source, "reference": reference, "rows": rows})
    return {"sentences": sentences, "num_shown": len(validations), "num_validations": len(samples)}


def _changes_over_time(
    translations: Sequence[DevTranslation], reference: str, unspaced: bool
) -> list[tuple[str, Spans]]:
    """Return the steps, as text, and the marked translation; validations with the same translation share a row."""
    rows = []
    for hypothesis, equal_translations in groupby(translations, key=lambda translation: translation.hypothesis):
        steps = [translation.step for translation in equal_translations]
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
    last = len(items) - 1
    positions = [round(n * last / (number - 1)) for n in range(number)]
    return [items[position] for position in positions]


def mark(hypothesis: str, reference: str, unspaced: bool = False) -> tuple[Spans, Spans]:
    """Mark the words or characters that only one of two texts has at that position.

    Args:
        hypothesis: text whose own words are marked as `extra`.
        reference: text whose own words are marked as `missing`.
        unspaced: compare characters instead of words.

    Returns:
        The spans of the hypothesis and of the reference.
    """
    split = list if unspaced else str.split
    hyp_units: list[str] = split(hypothesis)
    ref_units: list[str] = split(reference)
    space = "" if unspaced else " "

    def add(spans: Spans, name: str, units: Sequence[str]) -> None:
        if not units:
            return
        if spans:
            spans.append(("", space))
        spans.append((name, space.join(units)))

    hyp_spans: Spans = []
    ref_spans: Spans = []
    matcher = SequenceMatcher(None, hyp_units, ref_units, autojunk=False)
    for kind, hyp_start, hyp_end, ref_start, ref_end in matcher.get_opcodes():
        is_equal = kind == "equal"
        hyp_mark = "" if is_equal else "extra"
        ref_mark = "" if is_equal else "missing"
        add(hyp_spans, hyp_mark, hyp_units[hyp_start:hyp_end])
        add(ref_spans, ref_mark, ref_units[ref_start:ref_end])
    return hyp_spans, ref_spans
