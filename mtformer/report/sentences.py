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

NUM_SENTENCES = 8  # number of worst sentences, and of best sentences, that are shown for each test set
MAX_VALIDATIONS = 12  # maximum number of validations whose dev translations are shown, evenly spaced over the run
T = TypeVar("T")
Spans = list[tuple[str, str]]
"""(mark, text) of each part of a line: "extra" (not in the reference), "missing" (not in the translation) or ""."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of a test set with its translation; `chrf` is chrF2++ of the two."""

    source: str
    reference: str
    hypothesis: str
    chrf: float
    tgt_lang: str | None = None


def judge(run: RunContents) -> dict[str, list[Sentence]]:
    """Return the sentences of each test set, worst first; add a line to `run.unread` for each unreadable test set."""
    found = {}
    for name, card in run.scores.items():
        try:
            test, hypotheses = read_texts(run.run.evaluation(name), card)
        except DataError as error:
            run.unread.append(f"sentences of {name}: {error}")
            continue
        chrf = sentence_chrf(hypotheses, test.references[0], run.evaluation.lowercase)
        rows = zip(test.sources, test.references[0], hypotheses, chrf, strict=True)
        found[name] = sorted((Sentence(*row, card.tgt_lang) for row in rows), key=lambda sentence: sentence.chrf)
    return found


def compares_characters(run: RunContents) -> bool:
    """Return True if the target language is written without spaces between words."""
    tgt_lang = run.config.data.tgt_lang if run.config is not None else None
    return for_language(run.evaluation, tgt_lang).bleu_tokenizer in UNSPACED


def best_and_worst(sentences: dict[str, list[Sentence]], unspaced: bool) -> list[dict[str, Any]]:
    """Return the worst and best sentences of each test set by chrF2++, excluding those equal to the reference."""
    sets = []
    for name, all_of_set in sentences.items():
        different = [one for one in all_of_set if one.hypothesis != one.reference]
        worst = different[:NUM_SENTENCES]
        best = different[len(worst) :][-NUM_SENTENCES:][::-1]
        sets.append({
            "name": name, "worst": [_entry(one, unspaced) for one in worst],
            "best": [_entry(one, unspaced) for one in best],
            "num_sentences": len(all_of_set), "num_equal": len(all_of_set) - len(different),
        })  # fmt: skip
    return sets


def _entry(one: Sentence, unspaced: bool) -> dict[str, Any]:
    hypothesis, reference = mark(one.hypothesis, one.reference, unspaced)
    return {"chrf": one.chrf, "source": one.source, "reference": reference, "hypothesis": hypothesis}


def over_time(samples: Sequence[dict[str, Any]], unspaced: bool) -> dict[str, Any] | None:
    """Return how the translation of each dev sentence of samples.jsonl changed; None if there are none."""
    chosen = choose_evenly(samples, MAX_VALIDATIONS)
    texts: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for record in chosen:
        for source, reference, hypothesis in record["samples"]:
            texts.setdefault((source, reference), []).append((int(record["step"]), hypothesis))
    sentences = []
    for (source, reference), of_steps in texts.items():
        rows = []
        for hypothesis, group in groupby(of_steps, key=lambda pair: pair[1]):
            steps = [step for step, _ in group]
            when = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
            rows.append((when, mark(hypothesis, reference, unspaced)[0]))
        sentences.append({"source": source, "reference": reference, "rows": rows})
    if not sentences:
        return None
    return {"sentences": sentences, "num_shown": len(chosen), "num_validations": len(samples)}


def choose_evenly(items: Sequence[T], number: int) -> list[T]:
    """Return `number` of the items, evenly spaced, including the first and the last one."""
    if len(items) <= number:
        return list(items)
    return [items[round(n * (len(items) - 1) / (number - 1))] for n in range(number)]


def mark(hypothesis: str, reference: str, unspaced: bool = False) -> tuple[Spans, Spans]:
    """Mark the words, or the characters if `unspaced`, that only one of the two texts has at that position."""
    hyp_units, ref_units = ((list(text) if unspaced else text.split()) for text in (hypothesis, reference))
    space = "" if unspaced else " "
    hyp_spans, ref_spans = Spans(), Spans()
    for kind, i, j, k, m in SequenceMatcher(None, hyp_units, ref_units, autojunk=False).get_opcodes():
        for spans, units, name in ((hyp_spans, hyp_units[i:j], "extra"), (ref_spans, ref_units[k:m], "missing")):
            if units:
                spans += [("", space)] if spans else []
                spans.append(("" if kind == "equal" else name, space.join(units)))
    return hyp_spans, ref_spans
