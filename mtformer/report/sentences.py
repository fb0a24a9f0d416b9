"""Translations of dev over time, and the best and worst ones of the test sets, with what differs from the reference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import groupby

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import DataError, MtformerError
from mtformer.evaluation.card import Texts, read_card, read_texts
from mtformer.evaluation.evaluate import config_sets
from mtformer.evaluation.scores import UNSPACED, bleu_tokenizer
from mtformer.experiment.runs import RunContents
from mtformer.page import table
from mtformer.rundir import HYPOTHESES

SHOWN = 8
"""Sentences on either end of the list."""
MOST_VALIDATIONS = 12
"""Of which dev translations are shown, evenly over the run."""
EXTRA_TOLD = '<mark class="extra">what the reference does not have there</mark>'
MISSING_TOLD = '<mark class="missing">what the translation lacks</mark>'


@dataclass(frozen=True)
class Sentence:
    """A sentence of a test set with its translation; `chrf` is chrF2++ of the two."""

    source: str
    reference: str
    hypothesis: str
    chrf: float
    tgt_lang: str | None = None


def judged(run: RunContents, unread: list[str]) -> dict[str, list[Sentence]]:
    """The sentences of each test set that was scored, the worst first.

    Args:
        run: the run.
        unread: gets a line about each set that cannot be shown.
    """
    found = {}
    for name in run.scores:
        try:
            texts, tgt_lang = _texts(run, name)
        except MtformerError as error:
            unread.append(f"no sentences of {name} are shown: {error}")
            continue
        found[name] = _judge(texts, tgt_lang, run.evaluation)
    return found


def _texts(run: RunContents, name: str) -> tuple[Texts, str | None]:
    """What was scored, and its target language; of an older version's card from the config's test set."""
    folder = run.run.evaluation(name)
    if "format" in run.scores[name]:
        card = read_card(folder)
        return read_texts(folder, card), card.tgt_lang
    sets = {one.name: one for one in config_sets(run.config.data)} if run.config is not None else {}
    if name not in sets or not (folder / HYPOTHESES).is_file():
        read_card(folder)  # says what is the matter with it
    one, hypotheses = sets[name], (folder / HYPOTHESES).read_text(encoding="utf-8").split("\n")[:-1]
    if len(hypotheses) != len(one.sources):
        raise DataError(f"{folder}: {len(hypotheses)} hypotheses, but the set has {len(one.sources)} lines now")
    return Texts(sources=one.sources, references=one.references, hypotheses=hypotheses), one.tgt_lang


def _judge(texts: Texts, tgt_lang: str | None, config: EvaluationConfig) -> list[Sentence]:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(word_order=2, lowercase=config.lowercase)
    rows = zip(texts.sources, texts.references[0], texts.hypotheses, strict=True)
    sentences = [
        Sentence(source, reference, hypothesis, metric.sentence_score(hypothesis, [reference]).score, tgt_lang)
        for source, reference, hypothesis in rows
    ]
    return sorted(sentences, key=lambda sentence: sentence.chrf)


def by_characters(run: RunContents) -> bool:
    """Whether the target language writes no spaces between words."""
    tgt_lang = run.config.data.tgt_lang if run.config is not None else None
    return bleu_tokenizer(run.evaluation, tgt_lang) in UNSPACED


def best_and_worst(sentences: dict[str, list[Sentence]], unspaced: bool) -> str:
    """Both ends of each test set by chrF2++; of the best those that are not the reference itself."""
    told = f'<p class="faint">Marked: {EXTRA_TOLD} and, in the reference, {MISSING_TOLD}.</p>'
    parts = [told] if sentences else []
    for name, all_of_set in sentences.items():
        different = [one for one in all_of_set if one.hypothesis != one.reference]
        worst = different[:SHOWN]
        best = different[len(worst) :][-SHOWN:][::-1]
        equal = len(all_of_set) - len(different)
        parts.append(f"<h3>{escape(name)}: the worst by chrF2++</h3>{_listing(worst, unspaced)}")
        heading = f"{escape(name)}: the best by chrF2++"
        told = (
            f'<p class="faint">Besides {equal:,} of {len(all_of_set):,} that are the reference, letter by letter.</p>'
        )
        parts.append(f"<h3>{heading}</h3>{told}{_listing(best, unspaced)}" if best or equal else "")
    return "\n".join(parts)


def _listing(sentences: Sequence[Sentence], unspaced: bool) -> str:
    return "\n".join(_entry(one, unspaced) for one in sentences)


def _entry(one: Sentence, unspaced: bool) -> str:
    hypothesis, reference = marked(one.hypothesis, one.reference, unspaced)
    rows = [("source", escape(one.source)), ("reference", reference), ("translation", hypothesis or "∅")]
    lines = "".join(f'<dt>{name}</dt><dd dir="auto">{text}</dd>' for name, text in rows)
    return f'<div class="sentence"><span class="score">{one.chrf:.1f}</span><dl>{lines}</dl></div>'


def over_time(samples: Sequence[dict[str, list[list[str]]]], unspaced: bool) -> str:
    """How the translation of each dev sentence of samples.jsonl changed; nothing where there are none."""
    chosen = _evenly(samples, MOST_VALIDATIONS)
    texts: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for record in chosen:
        for source, reference, hypothesis in record["samples"]:
            texts.setdefault((source, reference), []).append((int(str(record["step"])), hypothesis))
    parts = []
    if len(chosen) < len(samples):
        parts.append(f'<p class="faint">Of {len(chosen)} of {len(samples)} validations.</p>')
    for (source, reference), of_steps in texts.items():
        rows = []
        for hypothesis, group in groupby(of_steps, key=lambda pair: pair[1]):
            steps = [step for step, _ in group]
            when = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
            rows.append((when, f'<span dir="auto">{marked(hypothesis, reference, unspaced)[0] or "∅"}</span>'))
        parts.append(
            f'<div class="sentence"><dl><dt>source</dt><dd dir="auto">{escape(source)}</dd>'
            f'<dt>reference</dt><dd dir="auto">{escape(reference)}</dd></dl>'
            f"{table(('step', 'translation'), rows)}</div>"
        )
    return "\n".join([f'<p class="faint">Marked: {EXTRA_TOLD}.</p>', *parts]) if parts else ""


def _evenly(items: Sequence[dict[str, list[list[str]]]], most: int) -> list[dict[str, list[list[str]]]]:
    """So many of the items, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]


def marked(hypothesis: str, reference: str, unspaced: bool = False) -> tuple[str, str]:
    """Both as HTML: in the hypothesis the words that the reference does not have there are marked, and vice versa.

    Args:
        hypothesis, reference: plain text.
        unspaced: compare characters instead of words.
    """
    ours, theirs = ((list(text) if unspaced else text.split()) for text in (hypothesis, reference))
    space = "" if unspaced else " "
    left, right = [], []
    for kind, i, j, k, m in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        left.append(_mark(space.join(ours[i:j]), "" if kind == "equal" else "extra"))
        right.append(_mark(space.join(theirs[k:m]), "" if kind == "equal" else "missing"))
    return _joined(left, space), _joined(right, space)


def _mark(text: str, kind: str) -> str:
    return f'<mark class="{kind}">{escape(text)}</mark>' if kind and text else escape(text)


def _joined(parts: Iterable[str], space: str) -> str:
    return space.join(part for part in parts if part)
