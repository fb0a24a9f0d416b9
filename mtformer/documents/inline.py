"""Placing the marks of a text around the words of its translation, by the attention of the model.

Each target word has a label: the source word that it attends to most. An element is placed around the target words that
have its words as labels. A mark without words is placed where it crosses the fewest alignments: where, as far as
possible, the words before it have labels before it, and the words after it have labels after it.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents.document import Mark, MarkedText, Word, words_in
from mtformer.text.tokenizer import SPACE

NO_SPACE_BEFORE = {*",.;:!?)"}
"""Punctuation before which no space is added."""
START_BYTE = re.compile("<0x[0-7C-F][0-9A-F]>")
"""Token for the first byte of a character, with `tokenizer.byte_fallback`."""
FURTHER_BYTE = re.compile("<0x[89AB][0-9A-F]>")
"""Token for another byte of a character, with `tokenizer.byte_fallback`."""
UNALIGNED = -1
"""Label of a target word that attends to no source word."""

OWN_WORD = 2.0
"""Score of a target word with a label in an element."""
OWN_PUNCTUATION = 1.0
"""Score of punctuation with a label in an element; it counts less, because its attention is less certain."""
OTHER_WORD = -1.0
"""Score of a target word that an element may contain, although it belongs to the text around it."""
FOREIGN_WORD = -1e9
"""Score of a target word that an element cannot contain, because it belongs to another one."""

Content = list["str | Mark"]
"""Content of an element: text and marks, in order."""


class Span(NamedTuple):
    """Consecutive target words; if it is empty, a position between two words."""

    start: int
    end: int

    @property
    def num_words(self) -> int:
        """Number of words in it."""
        return self.end - self.start

    @property
    def is_empty(self) -> bool:
        """True if it contains no words."""
        return self.start == self.end


def place_marks(source: MarkedText, translation: Translation) -> dict[Mark, Content]:
    """Return the content of the root and of each element with words, in the order of the source.

    Args:
        source: a text and its marks.
        translation: its translation, with attention.
    """
    words = words_in(translation.text, source.word_pattern)
    attention = _attention_of_words(source, words, translation.attention)
    placement = _Placement(source, words, attention)
    # Marks without words are last, because their position depends on the elements around them.
    for mark in sorted(source.marks, key=lambda mark: not mark.words):
        placement.place(mark)

    contents = {source.root: placement.content(source.root, translation.text)}
    for mark in source.marks:
        if mark.is_element and mark.words:
            contents[mark] = placement.content(mark, translation.text)
    return contents


class _Placement:
    """The target words that each mark of a text contains, while marks are placed, outer ones first.

    Args:
        source: a text and its marks.
        words: words of its translation.
        attention: for each target word, the source words that it attends to, and how much.
    """

    def __init__(self, source: MarkedText, words: Sequence[Word], attention: Sequence[dict[int, float]]) -> None:
        self.words = words
        self.attention = attention
        self.labels = [max(weights, key=weights.__getitem__, default=UNALIGNED) for weights in attention]
        self.values = [_value(word) for word in words]
        """Scores of the words in the element that has their labels."""
        self.spans = {source.root: Span(0, len(words))}
        self.innermost_placed = [source.root] * len(words)
        """For each target word, the innermost mark around it among those that are placed."""
        self.innermost_of_source: dict[int, Mark] = {}
        """For each source word, the innermost mark around it."""
        for mark in (source.root, *source.marks):
            self.innermost_of_source.update(dict.fromkeys(mark.words, mark))

    def place(self, mark: Mark) -> None:
        """Choose the target words that a mark contains."""
        assert mark.parent is not None
        outer = self.spans[mark.parent]
        free_words = self._free_words(mark.parent)
        own_words = self._own_words(mark, mark.parent)
        if free_words and mark.words and not own_words and mark.is_element:
            # No word has a label in the element: use the one that attends to it most.
            own_words = {max(free_words, key=lambda word: self._attention_to(mark, word))}

        if own_words:
            outer_words = range(outer.start, outer.end)
            scores = [self._score(word, own_words, free_words) for word in outer_words]
            span = _best_span(own_words, scores, outer.start)
        else:
            position = self._position_without_words(mark, mark.parent)
            span = Span(position, position)
        self.spans[mark] = span
        self.innermost_placed[span.start : span.end] = [mark] * span.num_words

    def _free_words(self, parent: Mark) -> set[int]:
        """Return the target words in an element that belong to none of its inner marks."""
        free_words = set()
        outer = self.spans[parent]
        for word in range(outer.start, outer.end):
            label = self.labels[word]
            mark_of_label = self.innermost_of_source.get(label, parent)
            if self.innermost_placed[word] is parent and mark_of_label is parent:
                free_words.add(word)
        return free_words

    def _own_words(self, mark: Mark, parent: Mark) -> set[int]:
        """Return the target words with a label in a mark; all words around it if it contains all source words there."""
        outer = self.spans[parent]
        outer_words = range(outer.start, outer.end)
        if mark.words == parent.words:
            return set(outer_words)
        return {word for word in outer_words if self.labels[word] in mark.words}

    def _attention_to(self, mark: Mark, word: int) -> float:
        weights = self.attention[word]
        return sum(weights.get(source_word, 0.0) for source_word in mark.words)

    def _score(self, word: int, own_words: Collection[int], free_words: Collection[int]) -> float:
        if word in own_words:
            return self.values[word]
        return OTHER_WORD if word in free_words else FOREIGN_WORD

    def _position_without_words(self, mark: Mark, parent: Mark) -> int:
        """Return the position of a mark without target words: at the edge of its parent, as in the source, or inside.

        Inside, it is the first position at which it crosses the fewest alignments.
        """
        outer = self.spans[parent]
        if mark.words.start == parent.words.start:
            return outer.start
        if mark.words.stop == parent.words.stop:
            return outer.end

        # Number of crossed alignments at each position, minus that at the first one. Moving the mark past a word adds a
        # crossing if the source word of its label is after the mark, and removes one if it is before the mark.
        num_crossed = [0]
        for label in self.labels[outer.start : outer.end]:
            belongs_after = label >= mark.words.start
            belongs_before = 0 <= label < mark.words.start
            change = belongs_after - belongs_before
            num_crossed.append(num_crossed[-1] + change)
        fewest = min(num_crossed)
        return outer.start + num_crossed.index(fewest)

    def content(self, mark: Mark, text: str) -> Content:
        """Return the content of an element in a translation; the marks in it are placed."""
        span = self.spans[mark]
        position = 0 if span.is_empty else self.words[span.start].start
        end = 0 if span.is_empty else self.words[span.end - 1].end

        content: Content = []
        for inner in sorted(mark.marks, key=self.spans.__getitem__):
            inner_span = self.spans[inner]
            is_at_end = inner_span.start >= span.end
            inner_start = end if is_at_end else self.words[inner_span.start].start
            gap = text[position:inner_start]
            if not inner_span.is_empty:
                content += [gap, inner]
                position = max(position, self.words[inner_span.end - 1].end)
                continue

            # A mark without words has spaces around it as in the source.
            next_character = text[inner_start : inner_start + 1]
            allows_space = next_character not in NO_SPACE_BEFORE
            is_at_start = inner_span.start <= span.start
            needs_space = inner.follows_space and not is_at_start and not gap.endswith(" ")
            if needs_space and allows_space:
                gap += " "
            content += [gap, inner]
            if inner.precedes_space and allows_space and not is_at_end:
                content.append(" ")
            position = max(position, inner_start)
        content.append(text[position:end])
        return content


def _value(word: Word) -> float:
    begins_with_letter = word.text[0].isalnum()
    return OWN_WORD if begins_with_letter else OWN_PUNCTUATION


def _best_span(own_words: Collection[int], scores: Sequence[float], first: int) -> Span:
    """Return the span from one of an element's words to another with the highest sum of scores.

    Among equal ones, it is the shortest and then the first. This is Kadane's algorithm, which takes linear time.

    Args:
        own_words: target words that belong to the element, whose scores are positive.
        scores: scores of the target words from `first` on.
        first: the first word that has a score.
    """
    sums = list(accumulate(scores, initial=0.0))
    start = min(own_words)
    best_span = Span(start, start)
    best_score = 0.0
    for last in sorted(own_words):
        # Start here if the words before have no positive sum.
        if sums[last - first] <= sums[start - first]:
            start = last
        span = Span(start, last + 1)
        sum_before = sums[span.start - first]
        score = sums[span.end - first] - sum_before
        is_shorter = span.num_words < best_span.num_words
        if score > best_score or (score == best_score and is_shorter):
            best_score = score
            best_span = span
    return best_span


def _attention_of_words(
    source: MarkedText, words: Sequence[Word], attention: Attention | None
) -> list[dict[int, float]]:
    """Return the attention of each target word to source words: the geometric mean of both directions.

    Punctuation attends only to punctuation. `attention` is None if the tokenizer removed all characters.
    """
    if attention is None:
        attention = Attention([], [], [], [])
    source_texts = [source_word.text for source_word in source.words]
    texts = [word.text for word in words]
    source_words_of_piece = _overlaps(attention.src_pieces, source_texts)
    rows_of_word = _overlaps(texts, attention.tgt_pieces)

    # The attention of each target word, and the attention that each source word receives from all of them.
    sums_of_words = [defaultdict[int, float](float) for _ in words]
    received = defaultdict[int, float](float)
    for sums, word, rows in zip(sums_of_words, words, rows_of_word, strict=True):
        for row in rows:
            first_piece = attention.src_starts[row]
            for piece, weight in enumerate(attention.weights[row], start=first_piece):
                if weight <= 0:
                    continue
                for number in source_words_of_piece[piece]:
                    source_word = source.words[number]
                    if source_word.is_punctuation == word.is_punctuation:
                        sums[number] += weight
                        received[number] += weight

    return [_mean_with(received, sums) for sums in sums_of_words]


def _mean_with(received: Mapping[int, float], weights: Mapping[int, float]) -> dict[int, float]:
    """Return the geometric mean of the attention to source words and of its share of all attention they receive."""
    # The mean of w and w / r is w / sqrt(r).
    return {number: weight / received[number] ** 0.5 for number, weight in weights.items()}


def _overlaps(parts: Sequence[str], other_parts: Sequence[str]) -> list[set[int]]:
    """Return which of `other_parts` each of `parts` overlaps in a text that both form, up to spaces and normalization.

    Positions are scaled if normalization has changed the number of characters.
    """
    # The number of the other part to which each character belongs.
    part_at: list[int] = []
    for number, part in enumerate(other_parts):
        part_at += [number] * _num_characters(part)
    if not part_at:
        return [set() for _ in parts]

    # The other parts at the centers of the characters of each part.
    borders = list(accumulate(map(_num_characters, parts), initial=0))
    num_characters = borders[-1]
    scale = len(part_at) / max(1, num_characters)
    overlapped = []
    for start, end in pairwise(borders):
        centers = [(position + 0.5) * scale for position in range(start, end)]
        numbers = {part_at[int(center)] for center in centers}
        overlapped.append(numbers)
    return overlapped


def _num_characters(part: str) -> int:
    """Return the number of characters of a word or piece; the tokens of all bytes of a character count as one."""
    with_first_bytes = START_BYTE.sub("x", part)
    characters = FURTHER_BYTE.sub("", with_first_bytes)
    return len(characters.replace(SPACE, ""))
