"""Decoding state between two steps: the encoder output, and the keys and values of all attention layers.

B sentences, R beams per sentence, N = B x R rows (row b*R + r), T maximum number of steps, t steps so far, G key and
value heads, K width of a head, S source length, D model width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.model.ops import kernel_mask


class EncoderOutput(NamedTuple):
    """Hidden states of the source positions, and the padding mask as `attend` expects it."""

    states_BSD: Tensor
    mask_B11S: Tensor


class KeyValues(NamedTuple):
    """Projected keys and values."""

    k_BGSK: Tensor
    v_BGSK: Tensor


class LayerCache:
    """Keys and values of one decoder layer.

    Self-attention keys and values have shape (B, G, T*R, K), with step t of beam r at index t*R + r. They are not
    moved when beams are reordered; `DecoderCache` records which of them belong to the history of each beam. `source`
    has the cross-attention keys and values (B, G, S, K); `capacity` is the maximum number of self-attention keys, T*R.
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
    beams of a sentence at once: each query is multiplied with the keys of all beams, and `own_B1RX` masks the keys that
    are not part of its history. This replaces R products of one query each with one product of R queries, and
    reordering beams copies no keys or values. The mask of 2 beams at step 2, if both continue token 0 of beam 0:

        step          0     1     2
        key of beam   0 1   0 1   0 1
        beam 0        1 0   1 0   1 0
        beam 1        1 0   0 1   0 1

    There are R beams per sentence and at most T steps. Of the encoder output of the batch, only the mask is kept;
    `layers`, one cache per decoder layer, hold its keys and values.
    """

    def __init__(self, encoder_output: EncoderOutput, layers: list[LayerCache], R: int, T: int) -> None:
        states_BSD, mask_B11S = encoder_output
        B = mask_B11S.size(0)
        self.encoder_output = EncoderOutput(states_BSD.new_empty(B, 0, states_BSD.size(2)), mask_B11S)
        self.layers = layers
        self.R = R
        self.length = 0
        """Number of steps decoded."""
        # [b, 0, r, t*R + q]: step t of beam q is in the history of beam r. Until the first `reorder`, r == q.
        is_own_RR = torch.eye(R, dtype=torch.bool, device=mask_B11S.device)
        self.own_B1RX = kernel_mask(is_own_RR.repeat(B, 1, 1, T), states_BSD)

    def reorder(self, beam_BR: Tensor) -> None:
        """Let beam r of sentence b continue the history of its beam beam_BR[b, r]."""
        own_B1Rt = self.own_B1RX[..., : self.length * self.R]
        own_B1Rt.copy_(own_B1Rt.gather(2, beam_BR[:, None, :, None].expand_as(own_B1Rt)))

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences in the batch, in this order."""
        for layer in self.layers:
            layer.keep(sentences_M)
        self.encoder_output = EncoderOutput(*(x.index_select(0, sentences_M) for x in self.encoder_output))
        self.own_B1RX = self.own_B1RX.index_select(0, sentences_M)
