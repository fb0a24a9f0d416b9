"""Decoding state between two steps: the encoder output, and the keys and values of all attention layers.

B sentences, R beams per sentence, N = B x R rows (row b*R + r), T maximum number of steps, t steps so far, G key and
value heads, K width of a head, S source length, D model width.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class EncoderOutput(NamedTuple):
    """Hidden states of the source positions, and the padding mask (True = attend)."""

    states_BSD: Tensor
    mask_B11S: Tensor


class KeyValues(NamedTuple):
    """Projected keys and values."""

    k_BGSK: Tensor
    v_BGSK: Tensor


class LayerCache:
    """Keys and values of one decoder layer.

    Self-attention keys and values have shape (B, G, T*R, K), with step t of beam r at index t*R + r. They are not
    moved when beams are reordered; `DecoderCache` records which of them belong to the history of each beam.

    Args:
        source: cross-attention keys and values (B, G, S, K).
        capacity: maximum number of self-attention keys, T*R.
    """

    def __init__(self, source: KeyValues, capacity: int) -> None:
        self.source = KeyValues(source.k_BGSK.contiguous(), source.v_BGSK.contiguous())
        B, G, _, K = source.k_BGSK.shape
        self.k = source.k_BGSK.new_empty(B, G, capacity, K)
        self.v = torch.empty_like(self.k)
        self.num_filled = 0

    def append(self, k_BGRK: Tensor, v_BGRK: Tensor) -> KeyValues:
        """Append one step for all beams; return views of the keys and values of all steps, (B, G, (t + 1)*R, K)."""
        start, self.num_filled = self.num_filled, self.num_filled + k_BGRK.size(2)
        assert self.num_filled <= self.k.size(2), "the cache is full"
        self.k[:, :, start : self.num_filled] = k_BGRK
        self.v[:, :, start : self.num_filled] = v_BGRK
        return KeyValues(self.k[:, :, : self.num_filled], self.v[:, :, : self.num_filled])

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences, in this order."""
        self.source = KeyValues(*(x.index_select(0, sentences_M) for x in self.source))
        self.k, self.v = (self._select(x, sentences_M) for x in (self.k, self.v))

    def _select(self, x_BGXK: Tensor, sentences_M: Tensor) -> Tensor:
        """Select sentences, copying only filled positions; the capacity stays the same."""
        selected = x_BGXK.new_empty(sentences_M.size(0), *x_BGXK.shape[1:])
        selected[:, :, : self.num_filled] = x_BGXK[:, :, : self.num_filled].index_select(0, sentences_M)
        return selected


class DecoderCache:
    """Decoding state of a batch.

    Source keys and values are stored once per sentence and shared by its beams. Self-attention is computed for all R
    beams of a sentence at once: each query is multiplied with the keys of all beams, and `is_own_BRTR` masks the keys
    that are not part of its history. This replaces R products of one query each with one product of R queries, and
    reordering beams copies no keys or values. For example, the mask of 2 beams at the third step, if both continue the
    first token of beam 0:

        step          0     1     2
        key of beam   0 1   0 1   0 1
        beam 0        1 0   1 0   1 0
        beam 1        1 0   0 1   0 1

    Args:
        encoder_output: the encoder output of the batch. Only its mask is kept; `layers` hold its keys and values.
        layers: one cache per decoder layer.
        R: number of beams per sentence.
        T: maximum number of steps.
    """

    def __init__(self, encoder_output: EncoderOutput, layers: list[LayerCache], R: int, T: int) -> None:
        states_BSD, mask_B11S = encoder_output
        B = mask_B11S.size(0)
        self.encoder_output = EncoderOutput(states_BSD.new_empty(B, 0, states_BSD.size(2)), mask_B11S)
        self.layers = layers
        self.R = R
        self.length = 0
        """Number of steps decoded."""
        # [b, r, t, q]: step t of beam q is in the history of beam r. Until the first `reorder`, r == q.
        is_own_1R1R = torch.eye(R, dtype=torch.bool, device=mask_B11S.device)[None, :, None]
        self.is_own_BRTR = is_own_1R1R.repeat(B, 1, T, 1)

    def mask(self) -> Tensor | None:
        """Return the self-attention mask of the next step, (B, 1, R, (t + 1)*R); None: attend to all positions."""
        if self.R == 1:
            return None
        return self.is_own_BRTR[:, :, : self.length + 1].flatten(2).unsqueeze(1)

    def reorder(self, rows_N: Tensor) -> None:
        """Let row i continue the history of row rows_N[i] of the same sentence."""
        own_BRtR = self.is_own_BRTR[:, :, : self.length]
        beam_BR = rows_N.view(-1, self.R) % self.R
        self.is_own_BRTR[:, :, : self.length] = own_BRtR.gather(1, beam_BR[:, :, None, None].expand_as(own_BRtR))

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences in the batch, in this order."""
        for layer in self.layers:
            layer.keep(sentences_M)
        self.encoder_output = EncoderOutput(*(x.index_select(0, sentences_M) for x in self.encoder_output))
        self.is_own_BRTR = self.is_own_BRTR.index_select(0, sentences_M)
