"""What decoding remembers: keys and values of the steps behind, and of the source.

B sentences, R beams a sentence, N = B x R rows (row b*R + r), T steps of room, t steps so far, G key/value heads,
K width of a head, S source length.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer's self-attention, (B, G, T*R, K): step t of beam r stands at place t*R + r.

    They are never moved when beams change places: `DecoderCache` knows which places belong to whose history.
    """

    def __init__(self, B: int, G: int, K: int, num_places: int, like: Tensor) -> None:
        self.k = like.new_empty(B, G, num_places, K)
        self.v = like.new_empty(B, G, num_places, K)

    def append(self, k_BGRK: Tensor, v_BGRK: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Writes one step at place `start` and returns all steps so far, (B, G, start + R, K), without copying."""
        end = start + k_BGRK.size(2)
        assert end <= self.k.size(2), "no room for another step"
        self.k[:, :, start:end] = k_BGRK
        self.v[:, :, start:end] = v_BGRK
        return self.k[:, :, :end], self.v[:, :, :end]


class DecoderCache:
    """The whole state of a batch in decoding.

    Cross-attention keys and values are kept once a sentence, not once a beam: they are the largest part, and the
    beams of a sentence read the same ones. So it is with the steps behind: the R beams of a sentence attend to all
    that any of them wrote, and `is_own_BRTR` masks what is not of their own history. This makes one product of R
    queries of what would be R products of one query, and spares copying all keys and values at each step.
    """

    def __init__(
        self, layers: list[LayerCache], cross: list[tuple[Tensor, Tensor]], keep_B11S: Tensor, R: int, T: int
    ) -> None:
        self.layers = layers
        self.cross = cross
        self.keep_B11S = keep_B11S
        self.R = R
        self.length = 0
        self.exact_logits: Callable[[Tensor, Tensor], Tensor] | None = None
        """(rows, tokens) -> their logits after the last step in float32, where those that it gave are rounded."""
        # A step that was not reordered yet is each beam's own.
        self.is_own_BRTR = torch.eye(R, dtype=torch.bool, device=keep_B11S.device).unsqueeze(1)
        self.is_own_BRTR = self.is_own_BRTR.repeat(keep_B11S.size(0), 1, T, 1)

    def history_keep(self) -> Tensor | None:
        """(B, 1, R, (t + 1)*R): the places that each beam may attend to in the step that comes; None: all."""
        if self.R == 1:
            return None
        return self.is_own_BRTR[:, :, : self.length + 1].flatten(2).unsqueeze(1)

    def reorder(self, rows_N: Tensor) -> None:
        """Row i goes on from the history of rows_N[i], a row of the same sentence."""
        own_BRtR = self.is_own_BRTR[:, :, : self.length]
        beam_BR = rows_N.view(-1, self.R) % self.R
        self.is_own_BRTR[:, :, : self.length] = own_BRtR.gather(1, beam_BR[:, :, None, None].expand_as(own_BRtR))

    def keep(self, sentences_M: Tensor) -> None:
        """Only these sentences stay in the batch, in this order."""
        num_places = self.length * self.R
        for layer in self.layers:
            layer.k, layer.v = _select(layer.k, sentences_M, num_places), _select(layer.v, sentences_M, num_places)
        self.cross = [(k.index_select(0, sentences_M), v.index_select(0, sentences_M)) for k, v in self.cross]
        self.keep_B11S = self.keep_B11S.index_select(0, sentences_M)
        self.is_own_BRTR = self.is_own_BRTR.index_select(0, sentences_M)


def _select(x_BGPK: Tensor, sentences_M: Tensor, num_places: int) -> Tensor:
    """Some sentences, in as much room as before; copies only the places that are filled."""
    selected = x_BGPK.new_empty(sentences_M.size(0), *x_BGPK.shape[1:])
    selected[:, :, :num_places] = x_BGPK[:, :, :num_places].index_select(0, sentences_M)
    return selected
