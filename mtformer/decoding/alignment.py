"""Word alignments from attention weights.

S source pieces (eos not counted), T target pieces, W source words, X target words; words are separated by whitespace.
"""

from collections.abc import Sequence

from torch import Tensor

from mtformer.decoding.sentences import UNSPACED
from mtformer.text.pieces import SPACE


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the word, counted from 0, in which each piece begins; a piece of only a space belongs to the next word."""
    numbers, word, has_begun = [], 0, False
    for piece in pieces:
        first = None
        for character in piece:
            if character != SPACE:
                first, has_begun = word if first is None else first, True
            elif has_begun:
                word, has_begun = word + 1, False
        numbers.append(word if first is None else first)
    last = word if has_begun else max(0, word - 1)  # a space at the end begins no word
    return [min(number, last) for number in numbers]


def align(attention_TS: Tensor, src_pieces: Sequence[str], tgt_pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Return (source word, target word) for each target word: the source word with the most attention of its pieces.

    Args:
        attention_TS: weights; rows and columns beyond the pieces (eos) are ignored.
        src_pieces, tgt_pieces: the pieces as text.
    """
    if not all("".join(pieces).strip(SPACE) for pieces in (src_pieces, tgt_pieces)):
        return []
    tgt_words = word_numbers(tgt_pieces)
    weights_TW = _over_words(attention_TS[: len(tgt_pieces)], word_numbers(src_pieces))
    weights_XW = _over_words(weights_TW.T, tgt_words).T
    best_X = weights_XW.argmax(dim=1).tolist()
    return [(best_X[tgt_word], tgt_word) for tgt_word in dict.fromkeys(tgt_words)]


def best_source_words(attention_TS: Tensor, src_pieces: Sequence[str], is_unknown: Sequence[bool]) -> list[str]:
    """Return for each row the text of the source word with the most attention.

    Of a word with unknown pieces it is only the one with the most attention, since the model can write the others; in a
    script without spaces it is the piece with the most attention.

    Args:
        attention_TS: weights; columns beyond the pieces (eos) are ignored.
        src_pieces: the source's pieces as text.
        is_unknown: True for pieces that are not in the vocabulary.
    """
    numbers = word_numbers(src_pieces)
    best_T = _over_words(attention_TS, numbers).argmax(dim=1).tolist()
    return [
        _copy([i for i, n in enumerate(numbers) if n == word], weights_S, src_pieces, is_unknown)
        for word, weights_S in zip(best_T, attention_TS.tolist(), strict=True)
    ]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Return pairs of source and target word, counted from 0, as in `0-0 1-2`."""
    return " ".join(f"{src}-{tgt}" for src, tgt in pairs)


def _over_words(weights_TS: Tensor, words: Sequence[int]) -> Tensor:
    """Return the sums over the columns of each word, (T, W)."""
    sums_TW = weights_TS.new_zeros(len(weights_TS), words[-1] + 1)
    return sums_TW.index_add_(1, weights_TS.new_tensor(words).long(), weights_TS[:, : len(words)])


def _copy(
    places: Sequence[int], weights_S: Sequence[float], src_pieces: Sequence[str], is_unknown: Sequence[bool]
) -> str:
    """Return the text of a word, or of one piece of it (see `best_source_words`)."""
    texts = {i: src_pieces[i].replace(SPACE, " ").strip() for i in places}
    word = "".join(texts.values())
    unknown = [i for i in places if is_unknown[i]]
    if unknown or UNSPACED.search(word):
        return texts[max(unknown or filter(texts.get, places), key=lambda i: weights_S[i])]
    return word
