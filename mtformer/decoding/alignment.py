"""Word alignments out of attention.

S source pieces (eos not counted), T target pieces, words are what whitespace separates.
"""

from collections.abc import Sequence

from torch import Tensor

from mtformer.decoding.phrases import SPACE


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """The word, counted from 0, that each piece belongs to; a piece that is only a space belongs to the next word."""
    numbers, word, has_begun = [], 0, False
    for piece in pieces:
        if piece.startswith(SPACE) and has_begun:
            word, has_begun = word + 1, False
        numbers.append(word)
        has_begun = has_begun or piece.strip(SPACE) != ""
    return numbers


def align(attention_TS: Tensor, src_pieces: Sequence[str], tgt_pieces: Sequence[str]) -> list[tuple[int, int]]:
    """(source word, target word) for each target word: the source word with the most of its pieces' attention.

    Args:
        attention_TS: weights; rows and columns beyond the pieces (eos) are left out.
        src_pieces, tgt_pieces: the pieces as text.
    """
    src_words, tgt_words = word_numbers(src_pieces), word_numbers(tgt_pieces)
    if not src_words or not tgt_words:
        return []
    weights_TW = attention_TS.new_zeros(len(tgt_words), src_words[-1] + 1)
    weights_TW.index_add_(
        1, attention_TS.new_tensor(src_words).long(), attention_TS[: len(tgt_words), : len(src_words)]
    )
    weights_XW = attention_TS.new_zeros(tgt_words[-1] + 1, src_words[-1] + 1)
    weights_XW.index_add_(0, attention_TS.new_tensor(tgt_words).long(), weights_TW)
    return [(src_word, tgt_word) for tgt_word, src_word in enumerate(weights_XW.argmax(dim=1).tolist())]


def best_source_words(attention_TS: Tensor, src_pieces: Sequence[str]) -> list[str]:
    """For each row the source word with the most attention.

    Args:
        attention_TS: weights; columns beyond the pieces (eos) are left out.
        src_pieces: the source's pieces as text.
    """
    numbers = word_numbers(src_pieces)
    words = [""] * (numbers[-1] + 1)
    for number, piece in zip(numbers, src_pieces, strict=True):
        words[number] += piece.strip(SPACE)
    weights_TW = attention_TS.new_zeros(len(attention_TS), len(words))
    weights_TW.index_add_(1, attention_TS.new_tensor(numbers).long(), attention_TS[:, : len(numbers)])
    return [words[number] for number in weights_TW.argmax(dim=1).tolist()]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """`0-0 1-2`: source word and target word, counted from 0."""
    return " ".join(f"{src}-{tgt}" for src, tgt in pairs)
