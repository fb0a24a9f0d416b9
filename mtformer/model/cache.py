"""Decoding state between two steps: the encoder output, and the keys and values of all attention layers.

B sentences, R beams per sentence, N = B x R rows (row b*R + r), T maximum number of steps, t steps so far, G key and
value heads, K width of a head, S source length, D model width, M remaining sentences, X = T*R keys of all beams.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.model.kernels import kernel_mask


class EncoderOutput(NamedTuple):
    """Hidden states of the source positions, and the padding mask as `attend` expects it."""

    states_BSD: Tensor
    mask_B11S: Tensor

    def select(self, sentences_M: Tensor) -> "EncoderOutput":
        """Return the output for these sentences, in this order."""
        states_MSD = self.states_BSD.index_select(0, sentences_M)
        mask_M11S = self.mask_B11S.index_select(0, sentences_M)
        return EncoderOutput(states_MSD, mask_M11S)


class KeyValues(NamedTuple):
    """Projected keys and values."""

    k_BGSK: Tensor
    v_BGSK: Tensor

    def select(self, sentences_M: Tensor) -> "KeyValues":
        """Return the keys and values of these sentences, in this order."""
        k_MGSK = self.k_BGSK.index_select(0, sentences_M)
        v_MGSK = self.v_BGSK.index_select(0, sentences_M)
        return KeyValues(k_MGSK, v_MGSK)


class LayerCache:
    """Keys and values of one decoder layer.

    Self-attention keys and values have shape (B, G, T*R, K), with step t of beam r at index t*R + r. They are not
    moved when beams are reordered; `DecoderCache` records which of them belong to the history of each beam.

    Args:
        source: cross-attention keys and values (B, G, S, K).
        capacity: maximum number of self-attention keys, T*R.
    """

    def __init__(self, source: KeyValues, capacity: int) -> None:
        source_k_BGSK = source.k_BGSK.contiguous()
        source_v_BGSK = source.v_BGSK.contiguous()
        self.source = KeyValues(source_k_BGSK, source_v_BGSK)

        B, G, _, K = source_k_BGSK.shape
        self.k = source_k_BGSK.new_empty(B, G, capacity, K)
        self.v = torch.empty_like(self.k)
        self.num_filled = 0
        """Number of self-attention keys, t*R."""

    def append(self, step: KeyValues) -> KeyValues:
        """Append one step for all beams (B, G, R, K); return views of the keys and values of all steps."""
        start = self.num_filled
        stop = start + step.k_BGSK.size(2)
        capacity = self.k.size(2)
        assert stop <= capacity, "the cache is full"

        self.k[:, :, start:stop] = step.k_BGSK
        self.v[:, :, start:stop] = step.v_BGSK
        self.num_filled = stop
        return KeyValues(self.k[:, :, :stop], self.v[:, :, :stop])

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences, in this order."""
        self.source = self.source.select(sentences_M)
        self.k = self._select(self.k, sentences_M)
        self.v = self._select(self.v, sentences_M)

    def _select(self, x_BGXK: Tensor, sentences_M: Tensor) -> Tensor:
        """Select sentences, copying only filled positions; the capacity stays the same."""
        M = sentences_M.size(0)
        _, G, X, K = x_BGXK.shape
        filled_BGXK = x_BGXK[:, :, : self.num_filled]
        selected_MGXK = x_BGXK.new_empty(M, G, X, K)
        selected_MGXK[:, :, : self.num_filled] = filled_BGXK.index_select(0, sentences_M)
        return selected_MGXK


class DecoderCache:
    """Decoding state of a batch.

    Source keys and values are stored once per sentence and shared by its beams. Self-attention is computed for all R
    beams of a sentence at once: each query is multiplied with the keys of all beams, and `history_B1RX` masks the keys
    that are not part of its history. This replaces R products of one query each with one product of R queries, and
    reordering beams copies no keys or values. For example, the mask of 2 beams at step 2, if both continue token 0 of
    beam 0:

        step          0     1     2
        key of beam   0 1   0 1   0 1
        beam 0        1 0   1 0   1 0
        beam 1        1 0   0 1   0 1

    Of the encoder output of the batch, only the mask is kept; `layers` hold its keys and values.

    Args:
        encoder_output: encoder output of B sentences.
        layers: a cache for each decoder layer.
        R: number of beams per sentence.
        T: maximum number of steps.
    """

    def __init__(self, encoder_output: EncoderOutput, layers: list[LayerCache], R: int, T: int) -> None:
        states_BSD, mask_B11S = encoder_output
        B, _, D = states_BSD.shape
        no_states_B0D = states_BSD.new_empty(B, 0, D)
        self.encoder_output = EncoderOutput(no_states_B0D, mask_B11S)
        self.layers = layers
        self.R = R
        self.length = 0
        """Number of steps decoded."""

        # [b, 0, r, t*R + q]: step t of beam q is in the history of beam r. Until the first `reorder`, r == q.
        is_same_beam_RR = torch.eye(R, dtype=torch.bool, device=mask_B11S.device)
        is_in_history_B1RX = is_same_beam_RR.repeat(B, 1, 1, T)
        self.history_B1RX = kernel_mask(is_in_history_B1RX, states_BSD)

    def reorder(self, beam_BR: Tensor) -> None:
        """Let beam r of sentence b continue the history of its beam beam_BR[b, r]."""
        num_keys = self.length * self.R
        history_B1Rt = self.history_B1RX[..., :num_keys]
        beam_B1R1 = beam_BR[:, None, :, None]
        index_B1Rt = beam_B1R1.expand_as(history_B1Rt)
        reordered_B1Rt = history_B1Rt.gather(2, index_B1Rt)
        history_B1Rt.copy_(reordered_B1Rt)

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences in the batch, in this order."""
        for layer in self.layers:
            layer.keep(sentences_M)
        self.encoder_output = self.encoder_output.select(sentences_M)
        self.history_B1RX = self.history_B1RX.index_select(0, sentences_M)
