"""Which positions may be attended to. Everywhere True = attend, and masks are boolean.

B batch, T target (query) length, S source (key) length.
"""

import torch
from torch import Tensor


def padding_keep(lengths: Tensor, S: int) -> Tensor:
    """True at the first `length` positions of S.

    Args:
        lengths: (B,) one valid length a sentence, or (B, T) one a query.
        S: number of key positions.

    Returns:
        (B, S) for lengths a sentence, (B, T, S) for lengths a query; bool.
    """
    return torch.arange(S, device=lengths.device) < lengths.unsqueeze(-1)


def subsequent_keep(T: int, S: int | None = None, device: torch.device | None = None) -> Tensor:
    """(T, S) bool: query t sees keys up to its own place; with S > T the queries are the last T of the S positions.

    "Attention Is All You Need", section 3.2.3: leftward information flow only.
    """
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
