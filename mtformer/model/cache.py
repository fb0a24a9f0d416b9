"""What decoding remembers: keys and values of the steps behind, and of the source.

B sentences, R beams a sentence, N = B x R rows (row b*R + r), G key/value heads, K width of a head, S source length.
"""

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer's self-attention, in room for max_length steps: (N, G, max_length, K)."""

    def __init__(self, N: int, G: int, K: int, max_length: int, like: Tensor) -> None:
        self.k = like.new_empty(N, G, max_length, K)
        self.v = like.new_empty(N, G, max_length, K)

    def append(self, k_NG1K: Tensor, v_NG1K: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Writes one step in place and returns all steps so far, (N, G, position + 1, K), without copying."""
        assert position < self.k.size(2), "no room for another step"
        self.k[:, :, position : position + 1] = k_NG1K
        self.v[:, :, position : position + 1] = v_NG1K
        return self.k[:, :, : position + 1], self.v[:, :, : position + 1]

    def select(self, rows_M: Tensor, length: int) -> None:
        """Row i takes the history of rows_M[i]; copies only the `length` steps that are filled."""
        if rows_M.size(0) == self.k.size(0):
            self.k[:, :, :length] = self.k[:, :, :length].index_select(0, rows_M)
            self.v[:, :, :length] = self.v[:, :, :length].index_select(0, rows_M)
        else:
            self.k, self.v = self.k.index_select(0, rows_M), self.v.index_select(0, rows_M)


class DecoderCache:
    """The whole state of a batch in decoding.

    Cross-attention keys and values are kept once a sentence, not once a beam: they are the largest part, and the
    beams of a sentence read the same ones.
    """

    def __init__(self, layers: list[LayerCache], cross: list[tuple[Tensor, Tensor]], keep_B11S: Tensor, R: int) -> None:
        self.layers = layers
        self.cross = cross
        self.keep_B11S = keep_B11S
        self.R = R
        self.length = 0

    def reorder(self, rows_N: Tensor) -> None:
        """Row i goes on from the history of rows_N[i], a row of the same sentence."""
        for layer in self.layers:
            layer.select(rows_N, self.length)

    def keep(self, sentences_M: Tensor) -> None:
        """Only these sentences stay in the batch, in this order."""
        rows = (sentences_M.unsqueeze(1) * self.R + torch.arange(self.R, device=sentences_M.device)).flatten()
        for layer in self.layers:
            layer.select(rows, self.length)
        self.cross = [(k.index_select(0, sentences_M), v.index_select(0, sentences_M)) for k, v in self.cross]
        self.keep_B11S = self.keep_B11S.index_select(0, sentences_M)
