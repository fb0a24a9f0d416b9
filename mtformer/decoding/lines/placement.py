"""Required phrases that have no place in a translation.

The search must end with all required phrases. If one of them does not fit, the cheapest way is often to complete the
sentence first, and then to add the phrase: `Der Hund schläft. Lampe`, `Der Hund schläft Lampe.` or `Der Hund schläft.
sein Hund Lampe`. The comparison with the translation without this phrase shows that, in any script and without final
punctuation. A phrase that the model considers likely there, as in `Er schläft jetzt.`, is kept.
"""

import math
from collections.abc import Sequence

from mtformer.decoding.lines.translation import Translation, has_phrase
from mtformer.decoding.search.segments import Phrase
from mtformer.text.characters import IS_MARK, letters_and_digits

UNLIKELY = math.log(0.01)
"""Log-probability below which the model would not have continued in this way. In translations by the demo model with
phrases that do not fit, the first token after the sentence nearly always has a probability below 0.001."""


def has_unlikely_token(translation: Translation) -> bool:
    """Return True if the model considers a token unlikely; otherwise it has placed all phrases well."""
    return min(translation.token_log_probabilities, default=0.0) < UNLIKELY


def is_appended(phrase: str, ids: Phrase, translation: Translation, without: Translation) -> bool:
    """Return True if a translation is the one without a phrase, preceded or followed by text with the phrase.

    Case, spaces and punctuation are ignored. It is False if the model considers the beginnings of the additional text
    and of the phrase likely.

    Args:
        phrase: text of the phrase.
        ids: its ids, as they are required.
        translation: a translation with the phrase.
        without: the translation of the same source without the phrase.
    """
    sentence = _letters(without.text)
    additional = _additional(_letters(translation.text), sentence)
    if not sentence or _letters(phrase) not in additional:
        return False
    if has_phrase(without.text, phrase):
        return False

    start_of_additional = _num_common(translation.tokens, without.tokens)
    starts = [start_of_additional, *_positions(translation.tokens, ids)]
    log_probs = translation.token_log_probabilities
    # Two tokens, because the first may be only a space.
    log_probs_of_starts = [sum(log_probs[start : start + 2]) for start in starts]
    return min(log_probs_of_starts) < UNLIKELY


def _letters(text: str) -> str:
    """Return a text in lower case without spaces and punctuation."""
    return letters_and_digits(text.casefold())


def _additional(text: str, sentence: str) -> str:
    """Return what follows or precedes a sentence in a text; an empty string if it does not begin or end with it."""
    end = len(sentence)
    if text.startswith(sentence) and not IS_MARK.match(text, end):
        return text[end:]
    if text.endswith(sentence):
        return text[: len(text) - len(sentence)]
    return ""


def _num_common(tokens: Sequence[int], other_tokens: Sequence[int]) -> int:
    """Return the number of tokens at the beginning that are equal."""
    number = 0
    for token, other_token in zip(tokens, other_tokens, strict=False):
        if token != other_token:
            break
        number += 1
    return number


def _positions(tokens: Sequence[int], phrase: Phrase) -> list[int]:
    """Return the positions at which a phrase begins."""
    length = len(phrase)
    starts = range(len(tokens) - length + 1)
    return [start for start in starts if tuple(tokens[start : start + length]) == phrase]
