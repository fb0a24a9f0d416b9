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

With consistency regularization (see `training.objective`), the rows of the first and the second pass over a token
alternate, and the divergence between their distributions p and q is added: KL(p || q) = sum_v p_v (log p_v - log q_v) =
E_p[d] - c, where d is the difference of the logits, and c that of the logarithms of their sums of exponentials. Its
gradient with respect to the logits of p is p (d - E_p[d]); with respect to those of q, it is q - p.

N tokens, D width, V vocabulary, C tokens per chunk or block. `wide`: float32, or float64 for float64 input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtformer.text.tokenizer import PAD

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
    inputs = [hidden_ND, weight_VD] if bias_V is None else [hidden_ND, weight_VD, bias_V]
    # Under `no_grad`, `ctx.needs_input_grad` is still True for weights.
    with_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    options = _Options(label_smoothing, kl_weights, with_grad)
    return _LinearCrossEntropy.apply(hidden_ND, weight_VD, bias_V, target_N, options)


class _Options(NamedTuple):
    """Options of the loss; see `linear_cross_entropy`."""

    label_smoothing: float
    kl_weights: tuple[float, float] | None
    with_grad: bool


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight: Tensor, bias: Tensor | None, target_N: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        weight_VD = weight.to(hidden_ND.dtype)
        classes = _smoothed_classes(weight, bias, wide)
        has_pairs = options.kl_weights is not None
        terms = _row_terms(hidden_ND, weight, bias, target_N, classes, has_pairs)

        chunk_rows, block_rows = _chunk_and_block_rows(hidden_ND, len(weight), options.kl_weights)
        buffers = _new_buffers(hidden_ND, len(weight), chunk_rows, block_rows, options.kl_weights)
        gradients = _Gradients.zeros(hidden_ND, weight, bias) if options.with_grad else None
        loss = hidden_ND.new_zeros((), dtype=wide)
        nll = torch.zeros_like(loss)
        kl = torch.zeros_like(loss)

        for chunk in _slices(len(hidden_ND), chunk_rows):
            h_CD = hidden_ND[chunk]
            chunk_terms = terms.select(chunk)
            logits_CV = _logits(h_CD, weight_VD, bias, buffers.logits)
            for block in _slices(len(h_CD), block_rows):
                block_terms = chunk_terms.select(block)
                losses = _losses_and_gradient(logits_CV[block], block_terms, options, buffers)
                loss += losses.loss_C1.sum()
                nll += losses.nll_C1.sum()
                if losses.kl_P1 is not None:
                    kl += losses.kl_P1.sum()
            if gradients is not None:
                gradients.add(chunk, logits_CV, h_CD, weight_VD, chunk_terms.has_grad_N1)

        if gradients is not None:
            gradients.subtract_smoothing(hidden_ND, terms, classes, options)
            grad_weight_VD = gradients.weight_VD.to(weight.dtype)
            ctx.save_for_backward(gradients.hidden_ND, grad_weight_VD, gradients.bias_V)
        ctx.mark_non_differentiable(loss, nll)
        return loss + kl, loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        if grad_bias is not None:
            grad_bias = (grad_bias * grad_loss).to(grad_weight.dtype)
        grad_hidden = grad_hidden * grad_loss.to(grad_hidden.dtype)
        return grad_hidden, grad_weight * grad_loss, grad_bias, None, None


class _SmoothedClasses(NamedTuple):
    """Classes that receive probability mass from label smoothing."""

    num_classes: float | Tensor
    sum_of_rows_D: Tensor
    """Sum of their rows of W."""
    sum_of_biases: float | Tensor
    is_in_V: Tensor | None
    """1 for each of these classes, otherwise 0; None: all except pad."""


def _smoothed_classes(weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> _SmoothedClasses:
    """Return all classes except pad and those whose bias is -inf."""
    if bias is None:
        num_classes = weight.size(0) - 1
        sum_of_all_rows_D = weight.to(wide).sum(dim=0)
        sum_of_rows_D = sum_of_all_rows_D - weight[PAD].to(wide)
        return _SmoothedClasses(num_classes, sum_of_rows_D, 0.0, None)

    is_in_V = ~bias.isneginf()
    is_in_V[PAD : PAD + 1] = False  # an integer index would make the host wait for CUDA
    sum_of_biases = bias.to(wide).where(is_in_V, 0.0).sum()
    is_in_V = is_in_V.to(wide)
    sum_of_rows_D = is_in_V @ weight.to(wide)
    return _SmoothedClasses(is_in_V.sum(), sum_of_rows_D, sum_of_biases, is_in_V)


class _RowTerms(NamedTuple):
    """Values of each row that do not need its logits, with shape (N, 1)."""

    target_N1: Tensor
    target_logit_N1: Tensor
    """Exact logit of the target."""
    mean_logit_N1: Tensor
    """Mean of the logits over the classes of label smoothing."""
    has_loss_N1: Tensor
    """False for padding, and for rows of the second pass without a loss of their own."""
    has_grad_N1: Tensor
    """False for padding."""

    def select(self, rows: slice) -> "_RowTerms":
        """Return the values of these rows."""
        return _RowTerms(*(column[rows] for column in self))


def _row_terms(
    hidden_ND: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target_N: Tensor,
    classes: _SmoothedClasses,
    has_pairs: bool,
) -> _RowTerms:
    """Compute the values of all rows; if `has_pairs`, rows 2n and 2n + 1 are two passes over the same token."""
    target_N1 = target_N.unsqueeze(1)
    wide_ND = hidden_ND.to(classes.sum_of_rows_D.dtype)
    target_logit_N1 = (wide_ND * weight[target_N]).sum(dim=1, keepdim=True)
    if bias is not None:
        target_logit_N1 += bias[target_N1]

    # The sum of all logits needs only the sum of the rows of W.
    sum_of_logits_N = wide_ND @ classes.sum_of_rows_D + classes.sum_of_biases
    mean_logit_N = sum_of_logits_N / classes.num_classes

    has_loss_N1 = (target_N != PAD).unsqueeze(1)
    has_grad_N1 = has_loss_N1[::2].repeat_interleave(2, dim=0) if has_pairs else has_loss_N1
    return _RowTerms(target_N1, target_logit_N1, mean_logit_N.unsqueeze(1), has_loss_N1, has_grad_N1)


def _chunk_and_block_rows(hidden_ND: Tensor, V: int, kl_weights: tuple[float, float] | None) -> tuple[int, int]:
    """Return the number of rows per chunk and per block."""
    N = len(hidden_ND)
    device = hidden_ND.device.type if hidden_ND.device.type in CHUNK_LOGITS else "cuda"
    chunk_rows = max(1, min(N, CHUNK_LOGITS[device] // V))
    block_rows = max(1, min(N, BLOCK_LOGITS[device] // V))

    if hidden_ND.dtype == torch.float16:
        largest_gradient = 1 if kl_weights is None else 1 + sum(kl_weights)
        chunk_rows = min(chunk_rows, int(FP16_ROWS / largest_gradient))
    if kl_weights is not None:  # both rows of a pair
        chunk_rows += chunk_rows % 2
        block_rows += block_rows % 2
    return chunk_rows, min(block_rows, chunk_rows)


def _slices(num_rows: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` rows."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


class _Buffers(NamedTuple):
    """Memory that all chunks share: allocating new pages takes as long as the softmax."""

    logits: Tensor
    """Logits of a chunk, and their gradient."""
    probabilities: Tensor
    """Probabilities of a block."""
    pair_gradient: Tensor
    """Gradient of the logits of a block before it is rounded; empty without pairs of rows."""


def _new_buffers(
    hidden_ND: Tensor, V: int, chunk_rows: int, block_rows: int, kl_weights: tuple[float, float] | None
) -> _Buffers:
    wide = torch.promote_types(hidden_ND.dtype, torch.float32)
    logits = hidden_ND.new_empty(chunk_rows, V)
    probabilities = hidden_ND.new_empty(block_rows, V, dtype=wide)
    pair_rows = 0 if kl_weights is None else block_rows
    return _Buffers(logits, probabilities, torch.empty_like(probabilities[:pair_rows]))


def _logits(h_CD: Tensor, weight_VD: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    """Return the logits (C, V) of a chunk in the memory of `buffer`."""
    C = len(h_CD)
    logits_CV = torch.mm(h_CD, weight_VD.t(), out=buffer[:C])
    if bias is not None:
        logits_CV += bias.to(logits_CV.dtype)
    return logits_CV


class _Losses(NamedTuple):
    """Losses of the rows of a block; those of padding are 0."""

    loss_C1: Tensor
    """Label-smoothed loss."""
    nll_C1: Tensor
    """Negative log-likelihood."""
    kl_P1: Tensor | None
    """Weighted divergences of the pairs of rows, (C / 2, 1)."""


def _losses_and_gradient(logits_CV: Tensor, terms: _RowTerms, options: _Options, buffers: _Buffers) -> _Losses:
    """Return the losses of a block, and replace its logits by their gradient.

    The gradient lacks the uniform part of label smoothing (`_Gradients.subtract_smoothing`); that of padding is not
    defined.
    """
    p_CV = buffers.probabilities[: len(logits_CV)]
    torch.softmax(logits_CV, dim=1, dtype=p_CV.dtype, out=p_CV)
    target = _target_probabilities(logits_CV, p_CV, terms)
    nll_C1 = _negative_log_likelihoods(logits_CV, target, terms, options)

    # The mean of -log p over the classes of label smoothing; target logit + nll is the log of the sum of exponentials.
    uniform_C1 = terms.target_logit_N1 + nll_C1 - terms.mean_logit_N1
    smoothing = options.label_smoothing
    loss_C1 = (1 - smoothing) * nll_C1 + smoothing * uniform_C1

    kl_P1 = None
    if options.kl_weights is not None:
        kl_P1 = _write_gradient_of_pairs(logits_CV, p_CV, target, terms, options, buffers)
        kl_P1 = kl_P1.where(terms.has_grad_N1[::2], 0)
    elif options.with_grad:
        _write_gradient(logits_CV, p_CV, target, terms, options)

    loss_C1 = loss_C1.where(terms.has_loss_N1, 0)
    nll_C1 = nll_C1.where(terms.has_loss_N1, 0)
    return _Losses(loss_C1, nll_C1, kl_P1)


class _TargetProbabilities(NamedTuple):
    """Probabilities of the targets, corrected for the rounding of their logits (see the module's docstring)."""

    rounded_C1: Tensor
    """p_y, computed with the rounded logit."""
    z_C1: Tensor
    """Number by which the probabilities of the other classes are divided."""
    exact_C1: Tensor
    """p_y exp(d) / z."""


def _target_probabilities(logits_CV: Tensor, p_CV: Tensor, terms: _RowTerms) -> _TargetProbabilities:
    rounded_C1 = p_CV.gather(1, terms.target_N1)
    rounded_logit_C1 = logits_CV.gather(1, terms.target_N1)
    difference_C1 = (terms.target_logit_N1 - rounded_logit_C1).where(terms.has_loss_N1, 0)
    z_C1 = 1 + rounded_C1 * difference_C1.expm1()
    exact_C1 = rounded_C1 * difference_C1.exp() / z_C1
    return _TargetProbabilities(rounded_C1, z_C1, exact_C1)


def _negative_log_likelihoods(
    logits_CV: Tensor, target: _TargetProbabilities, terms: _RowTerms, options: _Options
) -> Tensor:
    smallest_p = torch.finfo(torch.float32).tiny
    nll_C1 = target.exact_C1.clamp_min(smallest_p).log().neg()
    if options.with_grad:
        return nll_C1

    # In the validation of a diverged model, p may underflow. Then the largest logit dominates the sum of exponentials.
    largest_logit_C1 = logits_CV.amax(dim=1, keepdim=True)
    return nll_C1.where(target.exact_C1 > smallest_p, largest_logit_C1 - terms.target_logit_N1)


def _write_gradient(
    logits_CV: Tensor, p_CV: Tensor, target: _TargetProbabilities, terms: _RowTerms, options: _Options
) -> None:
    """Replace the logits by the gradient of the loss: p - (1 - e) for the target, p for the other classes."""
    grad_target_C1 = target.exact_C1 + (options.label_smoothing - 1)
    torch.div(p_CV, target.z_C1, out=logits_CV)
    # `scatter_` would copy all of p twice.
    logits_CV[_target_places(terms)] = grad_target_C1[:, 0].to(logits_CV.dtype)


def _write_gradient_of_pairs(
    logits_CV: Tensor,
    p_CV: Tensor,
    target: _TargetProbabilities,
    terms: _RowTerms,
    options: _Options,
    buffers: _Buffers,
) -> Tensor:
    """Replace the logits by the gradient of loss and divergence, and return the weighted divergences (C / 2, 1)."""
    assert options.kl_weights is not None
    grad_CV = buffers.pair_gradient[: len(logits_CV)]
    scale_C1 = terms.has_loss_N1 / target.z_C1  # 0 for rows without a loss of their own
    kl_P1 = _divergences(logits_CV, p_CV, scale_C1, options.kl_weights, grad_CV)

    grad_target_C1 = target.exact_C1 + (options.label_smoothing - 1)
    # The gradient of the divergence has added scale x p to all classes, also to the target.
    correction_C1 = terms.has_loss_N1 * grad_target_C1 - scale_C1 * target.rounded_C1
    grad_CV[_target_places(terms)] += correction_C1[:, 0]
    logits_CV.copy_(grad_CV)
    return kl_P1


def _target_places(terms: _RowTerms) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the targets among the logits of a block."""
    rows_C = torch.arange(len(terms.target_N1), device=terms.target_N1.device)
    return rows_C, terms.target_N1[:, 0]


def _divergences(
    logits_CV: Tensor, p_CV: Tensor, scale_C1: Tensor, kl_weights: tuple[float, float], grad_CV: Tensor
) -> Tensor:
    """Return the weighted divergences of pairs of rows, and compute their gradient.

    Args:
        logits_CV: logits; rows 2n and 2n + 1 are a pair.
        p_CV: their probabilities, in pairs p and q.
        scale_C1: factor of the probabilities that are added to the gradient.
        kl_weights: weights of KL(p || q) and KL(q || p).
        grad_CV: memory for the gradient + scale x probabilities.

    Returns:
        The divergence of each pair (C / 2, 1).
    """
    weight_pq, weight_qp = kl_weights
    p = p_CV[::2]
    q = p_CV[1::2]
    scale_p = scale_C1[::2]
    scale_q = scale_C1[1::2]
    grad_p = grad_CV[::2]
    grad_q = grad_CV[1::2]

    # The differences d of the logits use the memory of the gradient of q, and the products with d that of p.
    d = grad_q
    d.copy_(logits_CV[::2]).sub_(logits_CV[1::2])
    d.nan_to_num_(0.0)  # NaN for classes with bias -inf
    mean_p = torch.mul(p, d, out=grad_p).sum(dim=1, keepdim=True)
    mean_q = torch.mul(q, d, out=grad_p).sum(dim=1, keepdim=True)

    # weight_pq (E_p[d] - c) + weight_qp (c - E_q[d]); with equal weights, the terms with c cancel out.
    kl_P1 = weight_pq * mean_p - weight_qp * mean_q
    if weight_pq != weight_qp:
        # The largest probability of a row is exp(largest logit) / sum of exponentials.
        largest_logit_C1 = logits_CV.amax(dim=1, keepdim=True)
        largest_p_C1 = p_CV.amax(dim=1, keepdim=True)
        log_sum_C1 = largest_logit_C1 - largest_p_C1.log()
        c = log_sum_C1[::2] - log_sum_C1[1::2]
        kl_P1 -= (weight_pq - weight_qp) * c

    # scale p + weight_pq p (d - E_p[d]) + weight_qp (p - q), then the same with p and q exchanged.
    factor_p = scale_p + (weight_qp - weight_pq * mean_p)
    torch.add(factor_p, d, alpha=weight_pq, out=grad_p)
    grad_p.mul_(p).sub_(q, alpha=weight_qp)
    factor_q = scale_q + (weight_pq + weight_qp * mean_q)
    torch.add(factor_q, d, alpha=-weight_qp, out=grad_q)
    grad_q.mul_(q).sub_(p, alpha=weight_pq)
    return kl_P1


@dataclass
class _Gradients:
    """Gradients of the sum of the losses; those of weight and bias are `wide`."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    @classmethod
    def zeros(cls, hidden_ND: Tensor, weight: Tensor, bias: Tensor | None) -> "_Gradients":
        """Return gradients before the first chunk; that of the states is not initialized.

        Args:
            hidden_ND: states.
            weight: output projection (V, D).
            bias: output bias (V,), if any.
        """
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        bias_V = None if bias is None else torch.zeros_like(bias, dtype=wide)
        return cls(torch.empty_like(hidden_ND), torch.zeros_like(weight, dtype=wide), bias_V)

    def add(self, rows: slice, grad_CV: Tensor, h_CD: Tensor, weight_VD: Tensor, has_grad_C1: Tensor) -> None:
        """Write the gradient of the states of a chunk, and add its gradients of weight and bias.

        Args:
            rows: rows of the chunk.
            grad_CV: gradient of its logits.
            h_CD: its states.
            weight_VD: output projection in the dtype of the states.
            has_grad_C1: False for padding.
        """
        torch.mm(grad_CV, weight_VD, out=self.hidden_ND[rows])
        grad_VC = grad_CV.t()
        # Padding is masked in h (C x D), because it is smaller than the gradient of the logits (C x V).
        self.weight_VD += grad_VC @ (h_CD * has_grad_C1)
        if self.bias_V is not None:
            has_grad_C = has_grad_C1[:, 0].to(grad_CV.dtype)
            self.bias_V += grad_VC @ has_grad_C

    def subtract_smoothing(
        self, hidden_ND: Tensor, terms: _RowTerms, classes: _SmoothedClasses, options: _Options
    ) -> None:
        """Subtract the uniform part of label smoothing, and set the gradients of padding to 0.

        Args:
            hidden_ND: states of all rows.
            terms: values of all rows.
            classes: classes that receive the uniform part.
            options: options of the loss.
        """
        uniform = options.label_smoothing / classes.num_classes
        smoothing = (uniform * classes.sum_of_rows_D).to(hidden_ND.dtype)  # (D,), or (N, D) with pairs
        if options.kl_weights is not None:
            smoothing = smoothing * terms.has_loss_N1
        self.hidden_ND = (self.hidden_ND - smoothing) * terms.has_grad_N1

        with_loss_ND = hidden_ND * terms.has_loss_N1
        row_D = uniform * with_loss_ND.sum(dim=0, dtype=self.weight_VD.dtype)
        if classes.is_in_V is None:
            self.weight_VD -= row_D
            self.weight_VD[PAD] += row_D
        else:
            self.weight_VD.addr_(classes.is_in_V, row_D, alpha=-1)
        if self.bias_V is not None and classes.is_in_V is not None:
            num_with_loss = terms.has_loss_N1.sum()
            self.bias_V -= uniform * num_with_loss * classes.is_in_V
