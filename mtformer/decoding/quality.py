"""Judging translations without a reference: warning flags, coverage of the source, and agreement of samples (MBR).

S source length, T target length.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import eq
from typing import Literal

from torch import Tensor

from mtformer.decoding.sentences import UNSPACED

REPETITION, LENGTH_LIMIT, COPY, LOW_CONFIDENCE = "repetition", "length limit", "copy of the source", "low confidence"
MISSING, FORBIDDEN = "missing", "forbidden"
"""Prefixes of flags about a phrase, as in `missing: phrase`."""
MAX_LOOP_LENGTH = 8
"""Tokens of the longest sequence whose repetition is detected."""
MIN_CONFIDENCE = -1.2
"""Mean log-probability per token, in nats, below which a translation is flagged: a probability of 0.3."""


def flags(
    source: str, text: str, src_tokens: Sequence[int], tokens: Sequence[int], log_probability: float, at_limit: bool
) -> tuple[str, ...]:
    """Return the flags that apply.

    Args:
        source, text: the line and its translation, both as the tokenizer writes them.
        src_tokens, tokens: the same in ids, without eos.
        log_probability: of the translation, eos included.
        at_limit: True if it ended at the maximum length.
    """
    found = []
    if is_looping(tokens) and not is_looping(src_tokens):
        found.append(REPETITION)
    if at_limit:
        found.append(LENGTH_LIMIT)
    if text.split() == source.split() and _is_sentence(text):
        found.append(COPY)
    if log_probability / (len(tokens) + 1) < MIN_CONFIDENCE:
        found.append(LOW_CONFIDENCE)
    return tuple(found)


def is_looping(tokens: Sequence[int]) -> bool:
    """Return True if a sequence of up to 8 tokens occurs four times in a row, over at least 8 tokens."""
    if len(tokens) - len(set(tokens)) < 6:  # the shortest run below
        return False
    for period in range(1, MAX_LOOP_LENGTH + 1):
        least = max(3 * period, 8 - period)
        is_same = list(map(eq, tokens[period:], tokens))
        if sum(is_same) >= least and any(flag and len(list(run)) >= least for flag, run in groupby(is_same)):
            return True
    return False


def _is_sentence(text: str) -> bool:
    """Return True if the text is longer than a name, which is often the same in both languages."""
    return len(text.split()) > 2 or len(UNSPACED.findall(text)) > 8


def coverage(attention_TS: Tensor) -> float:
    """Return the sum over source tokens of log(min(1, received attention)) (Wu et al. 2016, equation 14); at most 0."""
    return attention_TS.sum(dim=0).clamp(min=1e-20, max=1.0).log().sum().item()


def expected_utilities(texts: Sequence[str], metric: Literal["chrf", "bleu"]) -> list[float]:
    """Return the mean score of each sample against all samples as references, for minimum Bayes risk decoding.

    Eikema and Aziz 2020. Equal samples count as often as they occur.

    Args:
        texts: samples of one sentence, detokenized.
        metric: sacreBLEU's sentence-level chrF2, or BLEU.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    counts = Counter(texts)
    means = {
        text: sum(scorer.sentence_score(text, [other]).score * count for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]
