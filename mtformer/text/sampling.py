"""Reproducible random segmentation: subword regularization and BPE-dropout.

SentencePiece can sample too, but its newer versions seed the generator differently in each process, so a run could not
be resumed exactly. Here, all random numbers come from a NumPy generator created from the seed, and all words of a batch
of lines are sampled at once.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.errors import DataError
from mtformer.text.pieces import BPE, SPACE, UNIGRAM, Pieces, read_pieces

UNK = 1
UNKNOWN_PENALTY = 10.0
"""Difference between the scores of the least probable piece and of an unknown character, as in SentencePiece."""
MAX_EDGES = 1 << 20
"""Maximum number of edges in the cache of word lattices (about 25 MB)."""
MAX_WORDS = 1 << 20

Ints = NDArray[np.int64]


def make_sampler(processor: Any) -> "Sampler":
    """Return a sampler for a loaded `SentencePieceProcessor`."""
    pieces = read_pieces(processor.serialized_model_proto())
    if pieces.kind == UNIGRAM:
        return UnigramSampler(processor, pieces)
    if pieces.kind == BPE:
        return BpeSampler(processor, pieces)
    raise DataError("tokenizer.sampling_alpha: only unigram and BPE models support sampling; set it to 0")


class Sampler(ABC):
    """Base class of samplers. Lines are split into words and user-defined symbols; only words are split further."""

    def __init__(self, processor: Any, pieces: Pieces) -> None:
        self.processor, self.pieces = processor, pieces
        # Words are segmented independently unless a piece contains a space after its start.
        crosses_words = any(SPACE in piece[1:] for piece in pieces.normal)
        self.word = re.compile("(?s:.+)" if crosses_words else f"{SPACE}?[^{SPACE}]+|{SPACE}")
        longest_first = sorted(pieces.user, key=len, reverse=True)
        # Without symbols, the pattern never matches.
        self.user_symbols = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @abstractmethod
    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of each line; the result depends on the arguments only."""

    def cut(self, lines: Sequence[str]) -> tuple[list[str], Ints]:
        """Split lines and return all words in order, and the number of words in each line."""
        found = [self._cut_one(line) for line in self.processor.Normalize(list(lines))]
        return list(chain.from_iterable(found)), np.array([len(words) for words in found], dtype=np.int64)

    def _cut_one(self, line: str) -> list[str]:
        words: list[str] = []
        for number, part in enumerate(self.user_symbols.split(line)):
            words.extend([part] if number % 2 else self.word.findall(part))
        return words


def _lines_of(ids_N: Ints, word_N: Ints, words_per_line: Ints) -> list[list[int]]:
    """Group ids by line, given the word number of each id; consecutive unknown ids are merged."""
    line_N = np.repeat(np.arange(len(words_per_line)), words_per_line)[word_N]
    repeated_N = np.zeros(len(ids_N), dtype=bool)
    repeated_N[1:] = (ids_N[1:] == UNK) & (ids_N[:-1] == UNK) & (line_N[1:] == line_N[:-1])
    ids_N, line_N = ids_N[~repeated_N], line_N[~repeated_N]
    ends = np.cumsum(np.bincount(line_N, minlength=len(words_per_line))).tolist()
    ids = ids_N.tolist()
    return [ids[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


class UnigramSampler(Sampler):
    """Sample segmentations with probability proportional to (product of the probabilities of the pieces)^alpha.

    Forward filtering and backward sampling (Kudo 2018, "Subword Regularization", equation 8 with unlimited l). The
    filtered lattice of each word is cached. Its nodes are the positions between characters; the edges that end at a
    node divide the range 0 to 2^32 in proportion to their probabilities, and each stores the upper end of its part.
    All lattices are in the same arrays, sorted by node, so a single binary search goes back by one edge in all words.
    """

    def __init__(self, processor: Any, pieces: Pieces) -> None:
        super().__init__(processor, pieces)
        self.longest = max(map(len, pieces.normal), default=1)
        self.unknown_score = min((pieces.scores[p] for p in pieces.normal.values()), default=0.0) - UNKNOWN_PENALTY
        self.alpha = -1.0
        self._clear_cache()

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of each line, sampled from its lattices."""
        words, words_per_line = self.cut(lines)
        node_N = self._last_nodes(words, alpha)
        random = np.random.Generator(np.random.PCG64(seed))
        word_N = np.arange(len(words))
        steps: list[tuple[Ints, Ints]] = []
        keys, pieces, starts = self.edges
        while len(node_N):
            draw_N = random.integers(1 << 32, size=len(node_N), dtype=np.int64)
            edge_N = np.searchsorted(keys, (node_N << 32) | draw_N)
            steps.append((word_N, pieces[edge_N]))
            node_N = starts[edge_N]
            word_N, node_N = word_N[node_N >= 0], node_N[node_N >= 0]
        steps.reverse()
        word_N, ids_N = (np.concatenate([step[side] for step in steps] or [word_N]) for side in (0, 1))
        order = np.argsort(word_N, kind="stable")
        return _lines_of(ids_N[order], word_N[order], words_per_line)

    def _clear_cache(self) -> None:
        self.last_node: dict[str, int] = {}
        self.num_nodes = 0
        self.edges = np.empty((3, 0), dtype=np.int64)
        """Key (node and upper end of the range), piece, and start node of each edge, by ascending key."""

    def _last_nodes(self, words: Sequence[str], alpha: float) -> Ints:
        """Return the last node of each word; add lattices that are not in the cache."""
        if alpha != self.alpha or self.edges.shape[1] > MAX_EDGES:
            self._clear_cache()
            self.alpha = alpha
        edges: list[tuple[int, int, int]] = []
        for word in words:
            if word not in self.last_node:
                self._add_lattice(word, edges)
        if edges:
            self.edges = np.ascontiguousarray(np.hstack([self.edges, np.array(edges, dtype=np.int64).T]))
        return np.array([self.last_node[word] for word in words], dtype=np.int64)

    def _add_lattice(self, word: str, edges: list[tuple[int, int, int]]) -> None:
        """Append (node and upper end of the range, piece, start node or -1) for each edge of a word."""
        if word in self.pieces.user:
            edges.append((self._new_node() | 0xFFFFFFFF, self.pieces.user[word], -1))
        else:
            nodes, forward = [-1], [0.0]
            for end in range(1, len(word) + 1):
                arriving = self._arriving(word, end, nodes, forward, edges)
                top = max(weight for weight, _, _ in arriving)
                shares = [math.exp(weight - top) for weight, _, _ in arriving]
                total, upper, node = sum(shares), 0.0, self._new_node()
                for share, (_, piece, start) in zip(shares, arriving, strict=True):
                    upper += share
                    edges.append((node | min(int(upper / total * (1 << 32)), 0xFFFFFFFF), piece, start))
                edges[-1] = (node | 0xFFFFFFFF, *edges[-1][1:])
                nodes.append(node >> 32)
                forward.append(top + math.log(total))
        self.last_node[word] = self.num_nodes - 1

    def _arriving(
        self, word: str, end: int, nodes: list[int], forward: list[float], edges: list[tuple[int, int, int]]
    ) -> list[tuple[float, int, int]]:
        """Return (log weight, piece, start node) of each edge to a position: a piece or a character's last byte."""
        arriving = []
        for start in range(max(0, end - self.longest), end):
            piece = self.pieces.normal.get(word[start:end])
            if piece is not None:
                arriving.append((forward[start] + self.alpha * self.pieces.scores[piece], piece, nodes[start]))
        character = word[end - 1]
        if character not in self.pieces.normal:
            start, ids = nodes[end - 1], spell(character, self.pieces)
            for piece in ids[:-1]:  # a chain of nodes with one incoming edge each
                node = self._new_node()
                edges.append((node | 0xFFFFFFFF, piece, start))
                start = node >> 32
            arriving.append((forward[end - 1] + self.alpha * self.unknown_score, ids[-1], start))
        return arriving

    def _new_node(self) -> int:
        self.num_nodes += 1
        return (self.num_nodes - 1) << 32


def spell(character: str, pieces: Pieces) -> list[int]:
    """Return the ids of an unknown character: its bytes if the model has byte pieces, otherwise unk."""
    return [pieces.bytes[byte] for byte in character.encode("utf-8")] if pieces.bytes else [UNK]


class BpeSampler(Sampler):
    """BPE in which each merge that becomes possible is dropped with probability alpha.

    See Provilkov et al. 2020, "BPE-Dropout". Words of similar length are processed together; each step applies the best
    remaining merge in each word (the leftmost if several are equal). A symbol is the id of a piece, `num_pieces` + code
    point of an unknown character, or `pad`. N words, L symbols in the longest word.
    """

    def __init__(self, processor: Any, pieces: Pieces) -> None:
        super().__init__(processor, pieces)
        self.num_pieces = len(pieces.scores)
        self.pad = self.num_pieces + sys.maxunicode + 1
        self.symbols_of = lru_cache(MAX_WORDS)(self._symbols)
        merges = sorted(
            (self._pair(normal[piece[:cut]], normal[piece[cut:]]), merged)
            for normal in [pieces.normal]
            for piece, merged in normal.items()
            for cut in range(1, len(piece))
            if piece[:cut] in normal and piece[cut:] in normal
        )
        # The search returns the last entry for every unknown pair; its infinite rank prevents a merge.
        self.pairs = np.array([pair for pair, _ in merges] + [np.iinfo(np.int64).max])
        self.merged = np.array([merged for _, merged in merges] + [UNK])
        self.ranks = np.array([-pieces.scores[merged] for _, merged in merges] + [np.inf])

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of each line after random merges."""
        random = np.random.Generator(np.random.PCG64(seed))
        words, words_per_line = self.cut(lines)
        symbols = [self.symbols_of(word) for word in words]
        length_N = np.array([len(word) for word in symbols], dtype=np.int64)
        group_N = np.ceil(np.log2(np.maximum(length_N, 1)))
        word_N, ids_N = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        for group in np.unique(group_N):
            members = np.flatnonzero(group_N == group)
            ids_NL = self._merge(self._padded([symbols[word] for word in members.tolist()]), alpha, random)
            keep_NL = ids_NL != self.pad
            word_N = np.concatenate([word_N, np.repeat(members, keep_NL.sum(1))])
            ids_N = np.concatenate([ids_N, ids_NL[keep_NL]])
        order = np.argsort(word_N, kind="stable")
        return _lines_of(*self._spelled(ids_N[order], word_N[order]), words_per_line)

    def _symbols(self, word: str) -> list[int]:
        user, normal, first = self.pieces.user, self.pieces.normal, self.num_pieces
        return [user[word]] if word in user else [normal.get(c, first + ord(c)) for c in word]

    def _padded(self, words: list[list[int]]) -> Ints:
        length_N = np.array([len(word) for word in words])
        padded_NL = np.full((len(words), length_N.max()), self.pad)
        padded_NL[np.arange(padded_NL.shape[1]) < length_N[:, None]] = list(chain.from_iterable(words))
        return padded_NL

    def _merge(self, symbols_NL: Ints, alpha: float, random: np.random.Generator) -> Ints:
        """Return the symbols after all merges."""
        merged_NL: Ints = symbols_NL.copy()
        rank_NL = self._open_ranks(symbols_NL[:, :-1], symbols_NL[:, 1:], alpha, random)
        rows, column = np.arange(len(symbols_NL)), np.arange(symbols_NL.shape[1])
        while len(rows) and rank_NL.shape[1]:
            is_open_N = (rank_NL < np.inf).any(1)
            merged_NL[rows[~is_open_N]] = symbols_NL[~is_open_N]
            rows, symbols_NL, rank_NL = rows[is_open_N], symbols_NL[is_open_N], rank_NL[is_open_N]
            n, best_N = np.arange(len(rows)), rank_NL.argmin(1)
            new_N = self.merged[
                np.searchsorted(self.pairs, self._pair(symbols_NL[n, best_N], symbols_NL[n, best_N + 1]))
            ]
            # Shift all symbols to the right of the merge to the left by one.
            from_NL = np.minimum(column + (column > best_N[:, None]), len(column) - 1)
            symbols_NL = np.take_along_axis(symbols_NL, from_NL, 1)
            symbols_NL[:, -1] = self.pad
            symbols_NL[n, best_N] = new_N
            rank_NL = np.take_along_axis(rank_NL, np.minimum(from_NL[:, :-1], len(column) - 2), 1)
            rank_NL[:, -1] = np.inf
            rank_NL[n, best_N] = self._open_ranks(new_N, symbols_NL[n, best_N + 1], alpha, random)
            before_N = np.maximum(best_N - 1, 0)
            left_N = self._open_ranks(symbols_NL[n, before_N], new_N, alpha, random)
            rank_NL[n, before_N] = np.where(best_N > 0, left_N, rank_NL[n, before_N])
        return merged_NL

    def _pair(self, left: Any, right: Any) -> Any:
        """Return a number that identifies a pair of symbols."""
        return left * (self.pad + 1) + right

    def _open_ranks(self, left: Ints, right: Ints, alpha: float, random: np.random.Generator) -> NDArray[np.float64]:
        """Return the rank of the merge of each adjacent pair; infinite if there is no merge, or it is dropped."""
        pair = self._pair(left, right)
        at = np.searchsorted(self.pairs, pair)
        return np.where((self.pairs[at] == pair) & (random.random(pair.shape) >= alpha), self.ranks[at], np.inf)

    def _spelled(self, ids_N: Ints, word_N: Ints) -> tuple[Ints, Ints]:
        """Replace unknown characters with byte pieces or unk."""
        known_N = ids_N < self.num_pieces
        if known_N.all():
            return ids_N, word_N
        ids = [spell(chr(i - self.num_pieces), self.pieces) if i >= self.num_pieces else [i] for i in ids_N.tolist()]
        return np.array(list(chain.from_iterable(ids))), np.repeat(word_N, [len(spelling) for spelling in ids])
