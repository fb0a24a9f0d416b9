"""What makes one doubt a translation, in words for reports."""

from collections.abc import Sequence

from mtformer.decoding.sentences import UNSPACED

REPETITION, LENGTH_LIMIT, COPY, LOW_CONFIDENCE = "repetition", "length limit", "copy of the source", "low confidence"
MISSING, FORBIDDEN = "missing", "forbidden"
"""What is wrong with a phrase, in flags of the form `missing: phrase`."""
LONGEST_LOOP = 8
"""Tokens of the longest sequence whose repetition is looked for."""
LEAST_CONFIDENCE = -1.2
"""Mean log-probability of a token, in nats, below which a translation is doubted: 0.3 as a probability."""


def flags(
    source: str, text: str, src_tokens: Sequence[int], tokens: Sequence[int], log_probability: float, at_limit: bool
) -> tuple[str, ...]:
    """Which of the four hold.

    Args:
        source, text: the line and its translation, both as the tokenizer writes them.
        src_tokens, tokens: the same in ids, without eos.
        log_probability: of the translation, eos included.
        at_limit: whether its end came from the upper limit of its length.
    """
    found = []
    if is_looping(tokens) and not is_looping(src_tokens):
        found.append(REPETITION)
    if at_limit:
        found.append(LENGTH_LIMIT)
    if text.split() == source.split() and _is_sentence(text):
        found.append(COPY)
    if log_probability / (len(tokens) + 1) < LEAST_CONFIDENCE:
        found.append(LOW_CONFIDENCE)
    return tuple(found)


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether some sequence of up to 8 tokens comes four times without a break, over at least 8 tokens."""
    if len(tokens) - len(set(tokens)) < 6:  # the shortest run below
        return False
    for period in range(1, LONGEST_LOOP + 1):
        run = 0
        for i in range(period, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run >= max(3 * period, 8 - period):
                return True
    return False


def _is_sentence(text: str) -> bool:
    """Whether it is longer than a name, which may well be the same in both languages."""
    return len(text.split()) > 2 or len(UNSPACED.findall(text)) > 8
