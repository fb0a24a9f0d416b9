"""Label-smoothed cross-entropy of a linear projection, computed without storing all logits.

Let p = softmax(W h) and let q be the smoothed target distribution: 1 - e for the reference y, plus e / (V - 1) for each
class except pad (Szegedy et al. 2016, section 7), whose q is 0. The loss of a token is - sum_v q_v log p_v, and its
gradient with respect to the logits is p - q. With a bias, p = softmax(W h + b). A class with bias -inf never occurs;
like pad, it has q = 0 and no gradient, and is not counted in V.

Loss and gradient are computed in chunks in the forward pass, so memory usage does not grow with tokens x V. A chunk is
large enough for fast matrix products; all other operations use blocks of its rows, which fit in the CPU cache. The
uniform part of q is constant over classes, so its part in the loss and in both gradients needs only the sums of the
rows of W and of all h.

In bfloat16 and float16, the logits are rounded. If the model is confident, the gradient p_y - (1 - e) is a small
difference of large numbers, dominated by the rounding error of the reference logit. Therefore p is float32, and the
reference logit is recomputed in float32. If it exceeds the rounded logit by d, then p is divided by
z = 1 + p_y (exp(d) - 1), and p_y becomes p_y exp(d) / z.

Consistency regularization adds the divergence between two passes over the same batch. For the distributions p and q of
a token in the first and the second pass, KL(p || q) = sum_v p_v (log p_v - log q_v) = E_p[d] - c, where d is the
difference of the logits, and c that of the logarithms of their sums of exponentials. Its gradient with respect to the
logits of p is p (d - E_p[d]); with respect to those of q, it is q - p.

- R-Drop (Liang et al. 2021, arXiv 2106.14448): the mean of the losses of both passes + weight x the mean of KL(p || q)
  and KL(q || p). The paper adds the losses of both passes, so its alpha is twice the weight.
- SimCut (Gao et al. 2022, arXiv 2206.02368): the loss of the first pass + weight x KL(p || q). In the second pass,
  random embeddings are zero. The gradient flows through both passes, which the paper found to be essential.

N tokens, D width, V vocabulary, C tokens per chunk or block.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import EOS, PAD

CHUNK_LOGITS = {"cpu": 4_000_000, "cuda": 128_000_000}
"""Maximum number of logits per chunk: large enough for fast matrix products, and to keep a CUDA device busy."""
BLOCK_LOGITS = {"cpu": 1_000_000, "cuda": 128_000_000}
"""Maximum number of logits per block."""
FP16_ROWS = 16_384
"""Maximum number of tokens per chunk in float16, because sums of weight gradients must not exceed 65,504."""


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    label_smoothing: float,
    bias_V: Tensor | None = None,
    kl_weights: tuple[float, float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, summed over target tokens other than pad.

    Args:
        hidden_ND: states; with `kl_weights`, rows 2n and 2n + 1 belong to token n in the first and the second pass.
        weight_VD: output projection.
        target_N: targets of the rows; if that of row 2n + 1 is pad, the second pass has no loss of its own.
        label_smoothing: probability mass spread evenly over the vocabulary.
        bias_V: output bias.
        kl_weights: weights of KL(p || q) and KL(q || p); None: there is one pass.

    Returns:
        The label-smoothed loss plus the divergences (differentiable), the label-smoothed loss, and the negative
        log-likelihood (both without gradient), in nats, as float32 (float64 for float64 input).
    """
    # Under `no_grad`, `ctx.needs_input_grad` is still True for weights.
    inputs = (one for one in (hidden_ND, weight_VD, bias_V) if one is not None)
    with_grad = torch.is_grad_enabled() and any(one.requires_grad for one in inputs)
    arguments = (hidden_ND, weight_VD, target_N, label_smoothing, bias_V, with_grad, kl_weights)
    return _LinearCrossEntropy.apply(*arguments)


class Objective(nn.Module):
    """Model and loss in one module, which is replicated or sharded in distributed training.

    PyTorch's data-parallel wrappers hook into `forward`, so each use of a weight, also in the loss, must be inside it.
    """

    def __init__(self, model: Transformer, config: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.compiled: nn.Module | None = None
        """Compiled model for training; not used in validation, which would compile it again."""
        self.has_consistency = True
        """False in the first steps (`consistency_start`)."""

    def forward(
        self, src_BS: Tensor, src_lengths_B: Tensor, tgt_in_BT: Tensor, tgt_out_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return objective, label-smoothed loss and negative log-likelihood in nats, summed over target tokens.

        Only the objective has a gradient. With consistency regularization, it includes the divergence, and the others
        are those of the first pass (SimCut) or the mean of both passes (R-Drop).
        """
        config, weight = self.config, self.config.consistency_weight
        kind = config.consistency if self.training and self.has_consistency else "none"
        is_rdrop, is_simcut = kind == "rdrop", kind == "simcut" and weight > 0
        states = self.compiled if self.compiled is not None and self.training else self.model
        if is_rdrop or is_simcut:
            src_BS, src_lengths_B, tgt_in_BT = (torch.cat([x, x]) for x in (src_BS, src_lengths_B, tgt_in_BT))
        masks = self._token_masks(src_BS, tgt_in_BT, config.cutoff if is_simcut else 0.0) if self.training else ()
        hidden_BTD = states(src_BS, src_lengths_B, tgt_in_BT, *masks)
        kl_weights = None
        if is_rdrop or is_simcut:
            kl_weights = (weight, weight if is_rdrop else 0.0)
            hidden_BTD = hidden_BTD.unflatten(0, (2, -1)).permute(1, 2, 0, 3).flatten(1, 2)
            tgt_out_BT = torch.stack([tgt_out_BT, tgt_out_BT if is_rdrop else torch.zeros_like(tgt_out_BT)], dim=2)
        hidden_ND, target_N, smoothing = hidden_BTD.flatten(0, 1), tgt_out_BT.flatten(), config.label_smoothing
        weight_VD, bias_V = self.model.output, self.model.output_bias
        sums = linear_cross_entropy(hidden_ND, weight_VD, target_N, smoothing, bias_V, kl_weights)
        objective, loss, nll = (one / 2 for one in sums) if is_rdrop else sums
        return objective, loss, nll

    def _token_masks(self, src_BS: Tensor, tgt_in_BT: Tensor, cutoff: float) -> tuple[Tensor, ...]:
        """Return masks of the tokens that keep their embeddings; no masks if all do.

        As in SimCut's code, eos in the source and the first target token are kept.
        """
        p = self.config.token_dropout
        if p == cutoff == 0.0:
            return ()
        src_mask_BS, tgt_mask_BT = (_draw_mask(ids, p, cutoff) for ids in (src_BS, tgt_in_BT))
        tgt_mask_BT[:, 0] = True
        return src_mask_BS | (src_BS == EOS), tgt_mask_BT


def _draw_mask(ids_BT: Tensor, p: float, cutoff: float) -> Tensor:
    """Return a mask that is False with probability p, and in the second half of the batch also with that of cutoff."""
    p_B1 = torch.full((ids_BT.size(0), 1), p, device=ids_BT.device)
    p_B1[ids_BT.size(0) // 2 :] += (1 - p) * cutoff
    return torch.rand(ids_BT.shape, device=ids_BT.device) >= p_B1


class _SmoothedClasses(NamedTuple):
    """Classes that receive probability mass from label smoothing."""

    num_classes: float | Tensor
    sum_of_rows_D: Tensor
    sum_of_biases: float | Tensor
    is_in_V: Tensor | None
    """1 for each of these classes, otherwise 0; None: all except pad."""

    def subtract_from(self, grad_weight_VD: Tensor, row_D: Tensor, grad_bias_V: Tensor | None, number: Tensor) -> None:
        """Subtract the contribution of label smoothing from the gradients."""
        if self.is_in_V is None:
            grad_weight_VD -= row_D
            grad_weight_VD[PAD] += row_D
        else:
            grad_weight_VD.addr_(self.is_in_V, row_D, alpha=-1)
        if grad_bias_V is not None and self.is_in_V is not None:
            grad_bias_V -= number * self.is_in_V


def _smoothed_classes(weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> _SmoothedClasses:
    if bias is None:
        return _SmoothedClasses(weight.size(0) - 1, weight.to(wide).sum(dim=0) - weight[PAD].to(wide), 0.0, None)
    is_in_V = ~bias.isneginf()
    is_in_V[PAD : PAD + 1] = False  # an integer index would make the host wait for CUDA
    sum_of_biases = bias.to(wide).where(is_in_V, 0.0).sum()
    is_in_V = is_in_V.to(wide)
    return _SmoothedClasses(is_in_V.sum(), is_in_V @ weight.to(wide), sum_of_biases, is_in_V)


def _divergence(
    logits_CV: Tensor, p_CV: Tensor, scale_C1: Tensor, kl_weights: tuple[float, float], grad_CV: Tensor
) -> Tensor:
    """Return the weighted divergences (C / 2, 1) of the pairs of rows; set `grad_CV` to their gradient + scale x p."""
    weight_pq, weight_qp = kl_weights
    p, q, product, d = p_CV[::2], p_CV[1::2], grad_CV[::2], grad_CV[1::2]
    d.copy_(logits_CV[::2]).sub_(logits_CV[1::2]).nan_to_num_(0.0)  # NaN for classes with bias -inf
    mean_p, mean_q = (torch.mul(one, d, out=product).sum(dim=1, keepdim=True) for one in (p, q))
    kl = weight_pq * mean_p - weight_qp * mean_q
    if weight_pq != weight_qp:
        log_sum_C1 = logits_CV.amax(dim=1, keepdim=True) - p_CV.amax(dim=1, keepdim=True).log()
        kl -= (weight_pq - weight_qp) * (log_sum_C1[::2] - log_sum_C1[1::2])
    # scale p + weight_pq p (d - E_p[d]) + weight_qp (p - q), and the same for the logits of q, in the memory of d
    offset_p, offset_q = weight_qp - weight_pq * mean_p, weight_pq + weight_qp * mean_q
    torch.add(scale_C1[::2] + offset_p, d, alpha=weight_pq, out=product).mul_(p).sub_(q, alpha=weight_qp)
    torch.add(scale_C1[1::2] + offset_q, d, alpha=-weight_qp, out=d).mul_(q).sub_(p, alpha=weight_pq)
    return kl


def _losses(
    logits_CV: Tensor,
    y_C1: Tensor,
    logit_C1: Tensor,
    mean_logit_C1: Tensor,
    smoothing: float,
    kl_weights: tuple[float, float] | None,
    buffers: tuple[Tensor, Tensor],
    with_grad: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return label-smoothed losses, negative log-likelihoods, and divergences; replace the logits by their gradient.

    `logit_C1`: exact logits of the targets. `mean_logit_C1`: means over the classes of label smoothing, whose uniform
    part the gradient lacks. The gradient of rows without a loss is not defined.
    """
    C, real_C1 = len(logits_CV), y_C1 != PAD
    p_CV, grad_CV = (buffer[:C] for buffer in buffers)
    torch.softmax(logits_CV, dim=1, dtype=p_CV.dtype, out=p_CV)
    rounded_C1 = p_CV.gather(1, y_C1)
    difference_C1 = (logit_C1 - logits_CV.gather(1, y_C1)).where(real_C1, 0)
    z_C1 = 1 + rounded_C1 * difference_C1.expm1()
    p_C1 = rounded_C1 * difference_C1.exp() / z_C1
    least_p = torch.finfo(torch.float32).tiny
    nll_C1 = p_C1.clamp_min(least_p).log().neg()
    if not with_grad:  # in the validation of a diverged model, p may underflow
        nll_C1 = nll_C1.where(p_C1 > least_p, logits_CV.amax(dim=1, keepdim=True) - logit_C1)
    loss_C1 = (1 - smoothing) * nll_C1 + smoothing * (logit_C1 + nll_C1 - mean_logit_C1)
    place, grad_y_C1, kl = (torch.arange(C, device=y_C1.device), y_C1[:, 0]), p_C1 + (smoothing - 1), None
    if kl_weights is not None:
        scale_C1 = real_C1 / z_C1
        kl = _divergence(logits_CV, p_CV, scale_C1, kl_weights, grad_CV)
        grad_CV[place] += (real_C1 * grad_y_C1 - scale_C1 * rounded_C1)[:, 0]
        logits_CV.copy_(grad_CV)
    elif with_grad:
        torch.div(p_CV, z_C1, out=logits_CV)
        logits_CV[place] = grad_y_C1[:, 0].to(logits_CV.dtype)  # `scatter_` would copy all of p twice
    return loss_C1.where(real_C1, 0), nll_C1.where(real_C1, 0), kl


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight: Tensor,
        target_N: Tensor,
        smoothing: float,
        bias: Tensor | None,
        with_grad: bool,
        kl_weights: tuple[float, float] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        N, (V, D) = hidden_ND.size(0), weight.shape
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        weight_VD = weight.to(hidden_ND.dtype)
        real_N1 = (target_N != PAD).unsqueeze(1)
        with_grad_N1 = real_N1 if kl_weights is None else real_N1[::2].repeat_interleave(2, dim=0)
        classes = _smoothed_classes(weight, bias, wide)
        uniform = smoothing / classes.num_classes
        grad_hidden = torch.empty_like(hidden_ND) if with_grad else None
        grad_weight = weight.new_zeros(V, D, dtype=wide) if with_grad else None
        grad_bias = bias.new_zeros(V, dtype=wide) if with_grad and bias is not None else None
        loss, nll, kl = (hidden_ND.new_zeros((), dtype=wide) for _ in range(3))
        device = hidden_ND.device.type
        chunk, block = (max(1, min(N, sizes.get(device, sizes["cuda"]) // V)) for sizes in (CHUNK_LOGITS, BLOCK_LOGITS))
        if hidden_ND.dtype == torch.float16:
            chunk = min(chunk, FP16_ROWS if kl_weights is None else int(FP16_ROWS / (1 + sum(kl_weights))))
        if kl_weights is not None:
            chunk, block = chunk + chunk % 2, block + block % 2  # both rows of a pair
        block, y_N1 = min(block, chunk), target_N.unsqueeze(1)
        wide_ND = hidden_ND.to(wide)
        exact_N1 = (wide_ND * weight[target_N]).sum(dim=1, keepdim=True)  # reference logits in float32
        if bias is not None:
            exact_N1 += bias[y_N1]
        mean_logit_N = (wide_ND @ classes.sum_of_rows_D + classes.sum_of_biases) / classes.num_classes
        columns = y_N1, exact_N1, mean_logit_N.unsqueeze(1)
        # All chunks share one buffer: allocating new pages takes as long as the softmax.
        logits_buffer, p_buffer = hidden_ND.new_empty(chunk, V), hidden_ND.new_empty(block, V, dtype=wide)
        buffers = p_buffer, torch.empty_like(p_buffer[: 0 if kl_weights is None else block])
        for i in range(0, N, chunk):
            h_CD = hidden_ND[i : i + chunk]
            logits_CV = torch.mm(h_CD, weight_VD.t(), out=logits_buffer[: len(h_CD)])
            if bias is not None:
                logits_CV += bias.to(logits_CV.dtype)
            for j in range(0, len(h_CD), block):
                logits, rows = logits_CV[j : j + block], slice(i + j, min(i + j + block, i + len(h_CD)))
                y, exact, mean = (column[rows] for column in columns)
                losses = _losses(logits, y, exact, mean, smoothing, kl_weights, buffers, with_grad)
                loss, nll = loss + losses[0].sum(), nll + losses[1].sum()
                if losses[2] is not None:
                    kl += losses[2].where(with_grad_N1[rows][::2], 0).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            torch.mm(logits_CV, weight_VD, out=grad_hidden[i : i + chunk])
            # Padding is masked in h (C x D), because it is smaller than the gradient of the logits (C x V).
            with_grad_C1 = with_grad_N1[i : i + chunk]
            grad_weight += logits_CV.t() @ (h_CD * with_grad_C1)
            if grad_bias is not None:
                grad_bias += logits_CV.t() @ with_grad_C1[:, 0].to(logits_CV.dtype)
        if grad_hidden is not None and grad_weight is not None:
            uniform_D = (uniform * classes.sum_of_rows_D).to(grad_hidden.dtype)
            grad_hidden = (grad_hidden - (uniform_D if kl_weights is None else uniform_D * real_N1)) * with_grad_N1
            rest_D = uniform * (hidden_ND * real_N1).sum(dim=0, dtype=wide)
            classes.subtract_from(grad_weight, rest_D, grad_bias, uniform * real_N1.sum())
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype), grad_bias)
        ctx.mark_non_differentiable(loss, nll)
        return loss + kl, loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        if grad_bias is not None:
            grad_bias = (grad_bias * grad_loss).to(grad_weight.dtype)
        grad_hidden = grad_hidden * grad_loss.to(grad_hidden.dtype)
        return grad_hidden, grad_weight * grad_loss, None, None, grad_bias, None, None
