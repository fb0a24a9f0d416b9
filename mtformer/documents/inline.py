"""Placing the marks of a text around the words of its translation, by the attention of the model.

Each target word has a label: the source word that it attends to most. An element is placed around the target words that
have its words as labels. A mark without words is placed where it crosses the fewest alignments: where, as far as
possible, the words before it have labels before it, and the words after it have labels after it.
"""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import le
from typing import NamedTuple

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents.document import Mark, MarkedText, Word, words_in
from mtformer.text.characters import IS_ENDING
from mtformer.text.tokenizer import SPACE

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
FOREIGN_WORD = -math.inf
"""Score of a target word that an element cannot contain, because it belongs to another one."""
GUESS = 0.5
"""Maximum attention of a target word to an element, relative to that to its label, for the element to count as lost. If
the demo model has no word with a label in an element, the element is around a wrong word in 12 of 15 cases below this
value, and in 11 of 34 above."""
MAX_PIECE_WORDS = 16
"""Maximum number of source words that a piece contains. Only unknown text, of any length, forms longer pieces, and
attention to such a piece says nothing about its words."""
BLOCK_WORDS = 64
"""Number of words in each leaf of the tree of `_Crossings`; in a leaf, the fastest way is to add all changes."""

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


@dataclass(frozen=True)
class PlacedMarks:
    """The marks of a text in its translation."""

    contents: dict[Mark, Content]
    """Content of the root and of each element with words, in the order of the source."""
    has_lost_marks: bool
    """True if no word of the translation belongs to a mark with words: it is empty, or around a word by a guess."""


def place_marks(source: MarkedText, translation: Translation) -> PlacedMarks:
    """Place the marks of a text in its translation.

    Args:
        source: a text and its marks.
        translation: its translation, with attention.
    """
    if not source.marks:
        return PlacedMarks({source.root: [translation.text.strip()]}, has_lost_marks=False)

    words = words_in(translation.text, source.word_pattern)
    attention = _attention_of_words(source, words, translation.attention)
    placement = _Placement(source, words, attention)
    contents = {}
    for mark in (source.root, *source.marks):
        is_root = mark is source.root
        if is_root or (mark.is_element and mark.has_words):
            placement.place_marks_in(mark)
            contents[mark] = placement.content(mark, translation.text)
    return PlacedMarks(contents, placement.has_lost_marks)


class _Placement:
    """The target words that each mark of a text contains, while marks are placed, outer ones first.

    A mark is placed in a time that depends on its own words, not on all words around it, because an element may have
    any number of marks in it.

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
        self.innermost_of_source = [source.root] * len(source.words)
        """For each source word, the innermost mark around it."""
        for mark in source.marks:
            if mark.has_words:
                self.innermost_of_source[mark.first_word : mark.end_word] = [mark] * len(mark.words)
        self.first_free: dict[Mark, int] = {}
        """For some marks, a target word before which no words in them are free."""
        self.has_lost_marks = False

        self.words_by_label = sorted(range(len(words)), key=self.labels.__getitem__)
        """Target words in the order of their labels."""
        sorted_labels = [self.labels[word] for word in self.words_by_label]
        self.starts_of_labels = [bisect_left(sorted_labels, label) for label in range(len(source.words) + 1)]
        """For each source word, the position in `words_by_label` of the first word with this label or a later one."""

    @cached_property
    def attention_to(self) -> dict[int, list[tuple[int, float]]]:
        """For each source word, the target words that attend to it, and how much."""
        attention_to = defaultdict[int, list[tuple[int, float]]](list)
        for word, weights in enumerate(self.attention):
            for source_word, weight in weights.items():
                attention_to[source_word].append((word, weight))
        return attention_to

    def place_marks_in(self, parent: Mark) -> None:
        """Choose the target words of the marks directly in an element that is placed."""
        for mark in parent.marks:
            if mark.has_words:
                self._place(mark, parent)

        # The marks without target words. Their position depends only on the labels of the words around them.
        crossings: _Crossings | None = None
        for mark in parent.marks:
            if mark in self.spans:
                continue
            position = self._position_at_edge(mark, parent)
            if position is None:
                crossings = crossings or _Crossings(self, parent)
                position = crossings.best_position(mark.first_word)
            self.spans[mark] = Span(position, position)

        if parent.keeps_order:
            self._put_in_order(parent)

    def _place(self, mark: Mark, parent: Mark) -> None:
        """Choose the target words that a mark with words contains, if there are any."""
        own_words = self._own_words(mark, parent)
        if not own_words:
            # No word has a label in the element: use the one that attends to it most.
            word = self._most_attending(mark, parent) if mark.is_element else None
            if word is None:
                self.has_lost_marks = True
                return
            if self._is_guess(word, mark):
                self.has_lost_marks = True
            own_words = [word]

        span = Span(own_words[0], own_words[-1] + 1)
        if span.num_words > len(own_words):
            span = self._best_span(own_words, parent)
        self.spans[mark] = span
        self.innermost_placed[span.start : span.end] = [mark] * span.num_words

    def _own_words(self, mark: Mark, parent: Mark) -> Sequence[int]:
        """Return the target words with a label in a mark; all words around it if it contains all source words there."""
        outer = self.spans[parent]
        if mark.words == parent.words:
            return range(outer.start, outer.end)
        own_words = sorted(self.words_with_labels(mark.words))
        first = bisect_left(own_words, outer.start)
        end = bisect_left(own_words, outer.end)
        return own_words[first:end]

    def words_with_labels(self, source_words: range) -> Sequence[int]:
        """Return the target words whose labels are consecutive source words."""
        start = self.starts_of_labels[source_words.start]
        end = self.starts_of_labels[source_words.stop]
        return self.words_by_label[start:end]

    def _is_free(self, word: int, parent: Mark) -> bool:
        """Return True if a target word in an element belongs to none of its inner marks."""
        label = self.labels[word]
        is_label_outside = label == UNALIGNED or self.innermost_of_source[label] is parent
        return is_label_outside and self.innermost_placed[word] is parent

    def _most_attending(self, mark: Mark, parent: Mark) -> int | None:
        """Return the free word in an element that attends most to a mark in it; None if there are no free words."""
        outer = self.spans[parent]
        attention = defaultdict[int, float](float)
        for source_word in mark.words:
            for word, weight in self.attention_to.get(source_word, ()):
                if outer.start <= word < outer.end and self._is_free(word, parent):
                    attention[word] += weight
        if attention:
            return max(sorted(attention), key=attention.__getitem__)

        word = self.first_free.get(parent, outer.start)
        while word < outer.end and not self._is_free(word, parent):
            word += 1
        self.first_free[parent] = word
        return word if word < outer.end else None

    def _is_guess(self, word: int, mark: Mark) -> bool:
        """Return True if a word attends to a mark much less than to the word that is its label."""
        weights = self.attention[word]
        weight_of_mark = sum(weights.get(source_word, 0.0) for source_word in mark.words)
        return weight_of_mark <= GUESS * max(weights.values(), default=0.0)

    def _best_span(self, own_words: Sequence[int], parent: Mark) -> Span:
        """Return the span from one of a mark's words to another with the highest sum of scores.

        Among equal ones, it is the shortest and then the first. This is Kadane's algorithm, which takes linear time.
        """
        best_span = Span(own_words[0], own_words[0])
        best_score = 0.0
        start = own_words[0]
        score = 0.0
        last_word = start - 1
        for word in own_words:
            score += self._score_of_words_between(last_word, word, parent)
            # Start here if the words before have no positive sum.
            if score <= 0:
                start = word
                score = 0.0
            score += self.values[word]
            last_word = word

            span = Span(start, word + 1)
            is_shorter = span.num_words < best_span.num_words
            if score > best_score or (score == best_score and is_shorter):
                best_score = score
                best_span = span
        return best_span

    def _score_of_words_between(self, word: int, next_word: int, parent: Mark) -> float:
        """Return the sum of the scores of the words between two own words of a mark."""
        for other_word in range(word + 1, next_word):
            if not self._is_free(other_word, parent):
                return FOREIGN_WORD
        return OTHER_WORD * (next_word - word - 1)

    def _position_at_edge(self, mark: Mark, parent: Mark) -> int | None:
        """Return the position of a mark without target words if the source has it at the edge of its parent."""
        outer = self.spans[parent]
        if mark.first_word == parent.first_word:
            return outer.start
        if mark.end_word == parent.end_word:
            return outer.end
        return None

    def _put_in_order(self, parent: Mark) -> None:
        """Move the marks in an element to later positions where the order of the source requires it."""
        position = self.spans[parent].start
        for mark in parent.marks:
            span = self.spans[mark]
            start = max(position, span.start)
            position = max(start, span.end)
            self.spans[mark] = Span(start, position)

    def content(self, mark: Mark, text: str) -> Content:
        """Return the content of an element in a translation; the marks in it are placed."""
        if mark.keeps_order:
            return self._content_in_order(mark, text)
        span = self.spans[mark]
        position = self._start_of(span)
        end = self._end_of(span)

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
            allows_space = not IS_ENDING.match(next_character)
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

    def _content_in_order(self, mark: Mark, text: str) -> Content:
        """Return the content of an element whose marks keep their order; a tag follows a space as in the source."""
        span = self.spans[mark]
        position = self._start_of(span)
        content: Content = []
        for inner in mark.marks:
            inner_span = self.spans[inner]
            before = Span(span.start, inner_span.start)
            after = Span(inner_span.start, span.end)
            if inner.follows_space or before.is_empty:
                inner_start = self._end_of(before) if after.is_empty else self._start_of(after)
            else:
                inner_start = self._end_of(before)
            inner_start = max(position, inner_start)
            content += [text[position:inner_start], inner]
            position = inner_start if inner_span.is_empty else self._end_of(inner_span)
        content.append(text[position : self._end_of(span)])
        return content

    def _start_of(self, span: Span) -> int:
        """Return the start of the first word in the translation; 0 if there are no words."""
        return 0 if span.is_empty else self.words[span.start].start

    def _end_of(self, span: Span) -> int:
        """Return the end of the last word in the translation; 0 if there are no words."""
        return 0 if span.is_empty else self.words[span.end - 1].end


class _Crossings:
    """Where marks without target words cross the fewest alignments in an element, for one mark after the other.

    A mark at a position crosses the alignments of the words before it whose labels are after the mark, and of the words
    after it whose labels are before the mark. Moving the mark past a word changes their number by 1 or -1, so that it
    is a sum of changes. From one mark to the next, only the changes of the words between them are new. A tree of
    `BLOCK_WORDS` words in each leaf has the lowest sum of the words in each node, and its position.

    If all labels are in order, the position is between the words whose labels are before and after the mark.
    """

    def __init__(self, placement: _Placement, parent: Mark) -> None:
        self._placement = placement
        self._outer = placement.spans[parent]
        self._first_word = parent.first_word
        """Source word before which the mark is."""
        labels = placement.labels[self._outer.start : self._outer.end]
        self._sorted_labels: Sequence[int] = []
        """Labels of the words in the element if they are in order, and all words have one."""
        if labels and labels[0] != UNALIGNED and all(map(le, labels, labels[1:])):
            self._sorted_labels = labels
            return

        self._changes = [_change(label, self._first_word) for label in labels]

        num_blocks = -(-len(labels) // BLOCK_WORDS)
        self._num_leaves = 1 << max(0, num_blocks - 1).bit_length()
        self._nodes = [(0, 0, len(labels))] * (2 * self._num_leaves)
        """For each node, the sum of its changes, the lowest sum of its first ones, and the number of words before."""
        for block in range(num_blocks):
            self._nodes[self._num_leaves + block] = self._leaf(block)
        for number in range(self._num_leaves - 1, 0, -1):
            self._nodes[number] = self._inner_node(number)

    def best_position(self, first_word: int) -> int:
        """Return the first position with the fewest crossings of a mark before a source word.

        Source words must not decrease from one call to the next.
        """
        if self._sorted_labels:
            return self._outer.start + bisect_left(self._sorted_labels, first_word)

        passed_words = range(self._first_word, first_word)
        self._first_word = first_word
        for word in self._placement.words_with_labels(passed_words):
            if self._outer.start <= word < self._outer.end:
                self._pass(word - self._outer.start)
        _, _, position = self._nodes[1]
        return self._outer.start + position

    def _pass(self, word: int) -> None:
        """Change a word, which is now before the mark in the source."""
        self._changes[word] = _change(self._first_word - 1, self._first_word)
        block = word // BLOCK_WORDS
        number = self._num_leaves + block
        self._nodes[number] = self._leaf(block)
        while number > 1:
            number //= 2
            self._nodes[number] = self._inner_node(number)

    def _leaf(self, block: int) -> tuple[int, int, int]:
        start = block * BLOCK_WORDS
        sums = list(accumulate(self._changes[start : start + BLOCK_WORDS], initial=0))
        lowest = min(sums)
        return sums[-1], lowest, start + sums.index(lowest)

    def _inner_node(self, number: int) -> tuple[int, int, int]:
        left_sum, left_lowest, left_position = self._nodes[2 * number]
        right_sum, right_lowest, right_position = self._nodes[2 * number + 1]
        if left_sum + right_lowest < left_lowest:
            return left_sum + right_sum, left_sum + right_lowest, right_position
        return left_sum + right_sum, left_lowest, left_position


def _change(label: int, first_word: int) -> int:
    """Return how the number of crossings changes when a mark before a source word is moved past a target word."""
    if label == UNALIGNED:
        return 0
    return 1 if label >= first_word else -1


def _value(word: Word) -> float:
    begins_with_letter = word.text[0].isalnum()
    return OWN_WORD if begins_with_letter else OWN_PUNCTUATION


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
    source_words_of_piece = []
    for numbers in _overlaps(attention.src_pieces, source_texts):
        source_words_of_piece.append(list(numbers)[:MAX_PIECE_WORDS])
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
    if "<0x" not in part:
        return len(part.replace(SPACE, ""))
    with_first_bytes = START_BYTE.sub("x", part)
    characters = FURTHER_BYTE.sub("", with_first_bytes)
    return len(characters.replace(SPACE, ""))
