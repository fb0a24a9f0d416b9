"""Kernels that exist only for speed on one device.

Each function chooses between a faster kernel and the plain formula, which stands next to it and is the reference of its
test. With the plain formulas alone, the model would be the same, apart from rounding and random numbers:

    function                plain formula                            the kernel is for
    is_fused_faster         softmax(q k^T / sqrt(K)) v               a GPU; a CPU if T x S is large
    softmax_over_keys       scores.softmax(dim=-1)                   a CPU and short rows
    linear                  F.linear(x, weight, bias)                a CPU with bf16, in training
    linear_with_copies      F.linear(x, weight, bias)                a GPU with bf16 or fp16, in training
    dropout                 F.dropout(x, p)                          a CPU
    kernel_mask             the boolean mask                         a GPU

Times were measured on two Zen 4 cores if no other machine is named.

B batch, T target (query) length, S source (key) length, H heads, K width of a head, I and O widths of the input and the
output of a linear layer, N rows of its input.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CPU_FUSED_FROM = {
    torch.float64: 128 * 128,
    torch.float32: 128 * 128,
    torch.bfloat16: 1024 * 1024,
    torch.float16: 128 * 128,
}
"""Smallest T x S for which PyTorch's fused attention is used on a CPU. Milliseconds of forward and backward pass:

    dtype   T x S        unfused   fused
    fp32    14 x 14          5.6    10.1
    fp32    128 x 128       14.2    10.5
    bf16    14 x 14          3.5    35.9
    bf16    512 x 512       22.2    32.4
"""
CPU_VECTOR_BYTES = 64
"""Width of a vector register. The softmax of a CPU is slow for rows that are shorter."""
CPU_BF16_ROWS = 128
"""In training in bf16 on a CPU, the number of rows of a product is a multiple of this number."""
MASK_ALIGNMENT = 8
"""Fused GPU kernels copy a mask if the length of its rows is not a multiple of this number."""


def is_fused_faster(q_BHTK: Tensor, k_BHSK: Tensor, dropout_p: float) -> bool:
    """Return True if `F.scaled_dot_product_attention` is faster than the products and the softmax of its formula.

    On a CPU, it does not support dropout in its fused form; for the sizes see `CPU_FUSED_FROM`.

    Args:
        q_BHTK: queries.
        k_BHSK: keys, in the dtype of the queries.
        dropout_p: probability of dropping an attention weight.
    """
    if q_BHTK.device.type != "cpu":
        return True
    T = q_BHTK.size(2)
    S = k_BHSK.size(2)
    num_scores = T * S
    return dropout_p == 0.0 and num_scores >= CPU_FUSED_FROM[q_BHTK.dtype]


def softmax_over_keys(scores_BHTS: Tensor) -> Tensor:
    """Return the softmax over the last dimension; on a CPU, short rows are transposed.

    Milliseconds for the attention of 290 sentences (forward, backward, and the product with v) in bf16: 14 keys: 0.7
    instead of 2.3; 31 keys: 1.3 instead of 3.2; 32 keys, which fill a vector register: 2.0 instead of 0.9.
    """
    T, S = scores_BHTS.shape[-2:]
    row_bytes = S * scores_BHTS.element_size()
    is_short = row_bytes < CPU_VECTOR_BYTES
    # The transposed layout makes the product of a single query with v ten times slower.
    has_several_queries = T > 1
    if scores_BHTS.device.type == "cpu" and is_short and has_several_queries:
        return _transposed_softmax(scores_BHTS)
    return scores_BHTS.softmax(dim=-1)


def _transposed_softmax(scores_BHTS: Tensor) -> Tensor:
    """Return the softmax over the last dimension, computed with this dimension as the first."""
    scores_SBHT = scores_BHTS.movedim(-1, 0).contiguous()
    weights_SBHT = scores_SBHT.softmax(dim=0)
    return weights_SBHT.movedim(0, -1)


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor, is_training: bool) -> Tensor:
    """Return x W^T + b (..., O) in the dtype of x.

    Args:
        x: input (..., I).
        weight_OI: matrix W, which is cast to the dtype of x.
        bias_O: bias b, which is cast to the dtype of x.
        is_training: in bf16 on a CPU, pad the rows.
    """
    weight_OI = weight_OI.to(x.dtype)
    bias_O = bias_O.to(x.dtype)
    if is_training and x.dtype == torch.bfloat16 and x.device.type == "cpu":
        return _linear_with_padded_rows(x, weight_OI, bias_O)
    return F.linear(x, weight_OI, bias_O)


def _linear_with_padded_rows(x: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Return x W^T + b, computed for a multiple of `CPU_BF16_ROWS` rows, of which the last ones are dropped.

    oneDNN generates a kernel for each number of rows, and nearly every batch has new numbers. A new kernel costs 1.3 to
    5 ms on a processor with AMX, and about 1 ms on others. With padded rows, training of a small model is 1.10 times as
    fast with AMX, and 0.99 times as fast without it.
    """
    x_NI = x.flatten(0, -2)
    N = len(x_NI)
    num_padding_rows = -N % CPU_BF16_ROWS  # up to the next multiple
    padded_x = F.pad(x_NI, (0, 0, 0, num_padding_rows))
    padded_y = F.linear(padded_x, weight_OI, bias_O)
    y_NO = padded_y[:N]
    return y_NO.unflatten(0, x.shape[:-1])


def linear_with_copies(x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor) -> Tensor:
    """Return x W^T + b, computed with copies of W and b in the dtype of x.

    The gradients of W and b come out of their products in float32, without rounding and without a kernel that casts
    them. Together with masks that are converted once (`kernel_mask`), whole matrices that are not sliced, and larger
    chunks of the loss, a training step of the base model launches 1,173 operators instead of 1,918.

    Args:
        x: input (..., I) in bf16 or fp16.
        weight: matrix (O, I) in float32, which gets the gradient.
        bias: bias (O,) in float32, which gets the gradient.
        weight_copy: the matrix in the dtype of x.
        bias_copy: the bias in the dtype of x.
    """
    return _LinearWithCopies.apply(x, weight, bias, weight_copy, bias_copy)


class _LinearWithCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_copy)
        return F.linear(x, weight_copy, bias_copy)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight_copy = ctx.saved_tensors
        grad_NO = grad.flatten(0, -2)
        x_NI = x.flatten(0, -2)
        if grad.device.type == "cpu":  # `out_dtype` requires CUDA
            grad_ON = grad_NO.t().float()
            grad_weight_OI = grad_ON @ x_NI.float()
        else:
            grad_weight_OI = torch.mm(grad_NO.t(), x_NI, out_dtype=torch.float32)
        # With the sum before this product, `torch.compile` fuses fewer kernels: 76 instead of 73 for 1 + 1 layers.
        grad_x = grad @ weight_copy
        grad_bias_O = grad_NO.sum(dim=0, dtype=torch.float32)
        return grad_x, grad_weight_OI, grad_bias_O, None, None


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p) (Srivastava et al. 2014)."""
    if p == 0.0:
        return x
    if x.device.type == "cpu":
        return _CpuDropout.apply(x, p)
    return F.dropout(x, p)


class _CpuDropout(torch.autograd.Function):
    """Dropout with one random byte per element instead of a float: 5.6 ms for 4096 x 1024 (`F.dropout`: 25.9 ms).

    The probability is rounded to a multiple of 1/256, and the scale uses the rounded value, so the mean stays exact.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        threshold = round(p * 256)
        threshold = min(255, max(1, threshold))

        # Numbers of 64 bits, with a random byte for each element.
        num_elements = x.numel()
        num_words = (num_elements + 7) // 8
        words = torch.empty(num_words, dtype=torch.int64)
        # Use the full range: by default, `random_` leaves the sign bit 0, and thus every eighth byte below 128.
        words.random_(-(2**63), None)
        random_bytes = words.view(torch.uint8)
        noise = random_bytes[:num_elements].view(x.shape)

        # The in-place comparison keeps the dtype uint8 (0 or 1), which is cast six times as fast as bool.
        is_kept = noise.ge_(threshold)
        scale = 256 / (256 - threshold)
        ctx.multiplier = is_kept.to(x.dtype).mul_(scale)
        return x * ctx.multiplier

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.multiplier, None


def kernel_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Convert a mask once for all layers on a GPU, where each layer would otherwise convert a boolean mask.

    Args:
        mask: bool, True = attend.
        x: activations, whose dtype the converted mask gets.
    """
    if mask.device.type == "cpu":
        return mask
    return additive_mask(mask, x)


def additive_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Return a mask with 0 where a boolean mask is True and -inf elsewhere, in the dtype of x.

    Rows are padded to a multiple of `MASK_ALIGNMENT`, and attention ignores the padding. There is always padding,
    because `torch.compile` would compile again for a mask without it.
    """
    *leading_sizes, S = mask.shape
    num_units = S // MASK_ALIGNMENT + 1
    padded_S = num_units * MASK_ALIGNMENT
    added = x.new_zeros(*leading_sizes, padded_S)
    added[..., :S].masked_fill_(~mask, float("-inf"))
    return added
