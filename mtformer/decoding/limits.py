"""How long a translation may be."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig


@dataclass(frozen=True)
class Limits:
    """Bounds in tokens without eos; the ratios are relative to the source's tokens without eos.

    At least max(min_tokens, floor(min_length_ratio x source)), at most ceil(max_length_ratio x source) + 10, and not
    above `max_tokens`; but never fewer than `reserved` (one number a sentence: what its translation must hold), and
    never above `room`, what the model has positions for. At its upper limit a hypothesis is closed by eos.
    """

    max_length_ratio: float = 2.0
    min_length_ratio: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    reserved: Sequence[int] | None = None
    room: int | None = None

    @classmethod
    def of(cls, settings: DecodingConfig, reserved: Sequence[int], room: int) -> "Limits":
        """Those of the `decoding` section."""
        ratios = settings.max_length_ratio, settings.min_length_ratio
        return cls(*ratios, settings.max_length, settings.min_length, reserved, room)

    def bounds(self, src_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Fewest and most tokens (B,) of each sentence's translation; the given lengths count eos."""
        src_B = (src_lengths_B - 1).double()
        max_B = (src_B * self.max_length_ratio).ceil().long() + 10
        if self.max_tokens is not None:
            max_B = max_B.clamp(max=self.max_tokens)
        if self.reserved is not None:
            max_B = torch.maximum(max_B, torch.tensor(self.reserved, device=max_B.device))
        if self.room is not None:
            max_B = max_B.clamp(max=self.room)
        min_B = (src_B * self.min_length_ratio).floor().long().clamp(min=self.min_tokens)
        return torch.minimum(min_B, max_B), max_B
