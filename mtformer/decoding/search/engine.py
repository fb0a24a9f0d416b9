"""The interface of decoding backends, which search for translations of source ids, and the plan of their batches."""

import copy
import sys
from collections.abc import Generator, Sequence
from typing import Protocol

from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.segments import Segment
from mtformer.enums import Backend
from mtformer.text.tags import Target

MAX_WORKERS = 4
"""Maximum number of batches searched at once on a CPU."""
BEAM_TOKENS = {"cpu": 8192, "cuda": 65_536}
"""Default size of a batch on each device, in beam tokens (see `plan_batches`)."""

Batches = Sequence[Sequence[Segment]]
NBests = list[list[Hypothesis]]
"""Hypotheses of each sentence of a batch: best first, or samples in the order drawn."""


class Engine(Protocol):
    """A decoding backend.

    Sources end with eos and have no tags; targets have neither bos nor eos.
    """

    name: Backend
    device: str
    """Type of the device: `cpu` or `cuda`."""
    dtype: str
    """Precision, as shown in reports."""
    num_parameters: int | None
    """Number of parameters of all models; None if the backend does not know it."""
    max_positions: int
    """Maximum length of source and target, including tags and eos."""
    max_beam_tokens: int = sys.maxsize
    """Upper limit of the batch size; small batches let the caller process one while others are being searched."""
    target: Target = Target()
    """Ids that select the target language."""

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if the backend does not support a setting, alone or with required phrases."""

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch, in order; `settings` determines their number per sentence."""

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token | source, previous tokens) for each token of each target, including its eos."""

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU."""

    def beam_tokens(self, settings: DecodingConfig) -> int:
        """Return the batch size in beam tokens: `decoding.beam_tokens`, or the default for the device."""
        default = BEAM_TOKENS.get(self.device, BEAM_TOKENS["cpu"])
        return settings.beam_tokens or default

    def with_target(self, target: Target) -> "Engine":
        """Return a copy of the engine for another target language."""
        engine = copy.copy(self)
        engine.target = target
        return engine


def plan_batches(lengths: Sequence[int], beam_tokens: int, num_rows: int) -> list[list[int]]:
    """Group sentences of similar lengths into batches of sentence indices.

    The longest sentences come first, so that out-of-memory errors occur early.

    Args:
        lengths: source length of each sentence.
        beam_tokens: maximum of n x num_rows x (longest source) for the n sentences of a batch; a batch of one sentence
            may exceed it.
        num_rows: number of beams or samples per sentence.
    """
    sentences = range(len(lengths))
    order = sorted(sentences, key=lengths.__getitem__, reverse=True)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        num_sentences = max(1, beam_tokens // (num_rows * longest))
        end = start + num_sentences
        batches.append(order[start:end])
        start = end
    return batches
