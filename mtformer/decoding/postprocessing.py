"""From the hypotheses of a search to translations: the choice of the n best, their text, flags and attention.

S source length, T target length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.alignment import best_source_words
from mtformer.decoding.engine import Engine, NBests
from mtformer.decoding.inputs import one_line
from mtformer.decoding.quality import coverage, expected_utilities, flags
from mtformer.decoding.search import Hypothesis
from mtformer.decoding.segments import Segment
from mtformer.decoding.translation import Attention, Translation
from mtformer.text.pieces import SPACE
from mtformer.text.tokenizer import UNK, TokenizerPair

END = "</s>"
UNKNOWN = f"{SPACE}⁇{SPACE}"
"""The text that the tokenizer writes for an unknown piece, as a piece."""


@dataclass(frozen=True)
class Postprocessor:
    """Conversion of hypotheses to translations; `vocabulary` is that of the target language.

    With `token_scores`, it computes `Translation.token_log_probabilities` where the search did not.
    """

    engine: Engine
    tokenizers: TokenizerPair
    vocabulary: Sequence[str]
    decoding: DecodingConfig
    attention: bool
    token_scores: bool

    def __call__(self, segments: Sequence[Segment], found: NBests) -> list[list[Translation]]:
        """Return the n best translations of each segment."""
        n_bests = self._choose(segments, found)
        if self.token_scores:
            n_bests = self._with_token_scores(segments, n_bests)
        return self._translations(segments, n_bests)

    def _choose(self, segments: Sequence[Segment], found: NBests) -> NBests:
        """Return the n best, the best first: by expected utility with MBR, as drawn when sampling, else as found."""
        if self.decoding.coverage_penalty:
            found = self._with_coverage(segments, found)
            if not self.decoding.draws:
                found = [sorted(n_best, key=lambda one: -one.score) for n_best in found]
        if self.decoding.mbr_samples:
            return [self._most_agreed(samples) for samples in found]
        if self.decoding.sampling:
            return found
        return [n_best[: self.decoding.n_best] for n_best in found]

    def _with_coverage(self, segments: Sequence[Segment], found: NBests) -> NBests:
        sources = [segment.source for segment, n_best in zip(segments, found, strict=True) for _ in n_best]
        weights = iter(self.engine.attention(sources, [one.tokens for n_best in found for one in n_best]))
        beta = self.decoding.coverage_penalty
        return [[replace(one, score=one.score + beta * coverage(next(weights))) for one in n_best] for n_best in found]

    def _most_agreed(self, samples: Sequence[Hypothesis]) -> list[Hypothesis]:
        texts = self.tokenizers.tgt.decode([one.tokens for one in samples])
        utilities = expected_utilities(texts, self.decoding.mbr_metric)
        distinct: dict[str, Hypothesis] = {}
        for number in sorted(range(len(samples)), key=lambda number: -utilities[number]):
            distinct.setdefault(texts[number], samples[number])
        return list(distinct.values())[: self.decoding.n_best]

    def _with_token_scores(self, segments: Sequence[Segment], n_bests: NBests) -> NBests:
        """Score by teacher forcing what the search has not scored token by token."""
        pairs = [(one, each) for one, n_best in zip(segments, n_bests, strict=True) for each in n_best]
        if not pairs or all(each.token_log_probabilities for _, each in pairs):
            return n_bests
        scores = iter(self.engine.score([one.source for one, _ in pairs], [each.tokens for _, each in pairs]))
        return [[replace(each, token_log_probabilities=next(scores)) for each in n_best] for n_best in n_bests]

    def _translations(self, segments: Sequence[Segment], n_bests: NBests) -> list[list[Translation]]:
        owners = [segment for segment, n_best in zip(segments, n_bests, strict=True) for _ in n_best]
        flat = [one for n_best in n_bests for one in n_best]
        weights = self._attention(owners, flat)
        sources = self.tokenizers.src.decode([segment.source for segment in owners])
        texts = self.tokenizers.tgt.decode([one.tokens for one in flat])
        made = iter([self._translation(*each) for each in zip(owners, flat, weights, sources, texts, strict=True)])
        return [[next(made) for _ in n_best] for n_best in n_bests]

    def _translation(
        self, segment: Segment, one: Hypothesis, weights_TS: Tensor | None, source: str, text: str
    ) -> Translation:
        pieces = [self.vocabulary[token] for token in one.tokens]
        if UNK in one.tokens:
            pieces = self._with_unknowns(segment, one, weights_TS if self.decoding.replace_unknowns else None)
            text = self.tokenizers.tgt.decode_pieces(pieces)
            pieces = [UNKNOWN if piece == self.vocabulary[UNK] else piece for piece in pieces]
        src_tokens = segment.source[:-1]
        return Translation(
            text=one_line(text).strip(),
            score=one.score,
            tokens=one.tokens,
            log_probability=one.log_probability,
            token_log_probabilities=one.token_log_probabilities,
            pieces=[*pieces, END],
            flags=flags(source, text, src_tokens, one.tokens, one.log_probability, one.at_limit),
            attention=None if weights_TS is None else self._shown_attention(segment, pieces, weights_TS),
        )

    def _attention(self, owners: Sequence[Segment], hypotheses: Sequence[Hypothesis]) -> list[Tensor | None]:
        """Return (T, S) of the hypotheses that need it: of all, or of those with unknown tokens to be replaced."""
        replaces = self.decoding.replace_unknowns
        chosen = [i for i, one in enumerate(hypotheses) if self.attention or (replaces and UNK in one.tokens)]
        weights: list[Tensor | None] = [None] * len(hypotheses)
        if chosen:
            sources = [owners[number].source for number in chosen]
            found = self.engine.attention(sources, [hypotheses[number].tokens for number in chosen])
            for number, weights_TS in zip(chosen, found, strict=True):
                weights[number] = weights_TS
        return weights

    def _with_unknowns(self, segment: Segment, hypothesis: Hypothesis, weights_TS: Tensor | None) -> list[str]:
        """Return the pieces; an unknown one is that of the prefix, or (with weights) the most-attended source word."""
        pieces = [self.vocabulary[token] for token in hypothesis.tokens]
        num_given = len(segment.prefix_pieces)
        pieces[:num_given] = segment.prefix_pieces
        unknown = [number for number, token in enumerate(hypothesis.tokens) if token == UNK and number >= num_given]
        if weights_TS is not None and unknown:
            src_pieces = self.tokenizers.src.pieces(segment.text)
            is_unknown = [token == UNK for token in segment.source[:-1]]
            words = best_source_words(weights_TS[unknown], src_pieces, is_unknown)
            for number, word in zip(unknown, words, strict=True):
                pieces[number] = word
        return pieces

    def _shown_attention(self, segment: Segment, pieces: list[str], weights_TS: Tensor) -> Attention | None:
        if not self.attention:
            return None
        src_pieces = self.tokenizers.src.pieces(segment.text)
        weights = weights_TS[: len(pieces), : len(src_pieces)].tolist()
        if segment.continues_word:
            src_pieces[0] = src_pieces[0].removeprefix(SPACE)
        return Attention(src_pieces, pieces, weights, [0] * len(pieces))
