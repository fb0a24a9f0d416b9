"""Training steps on CUDA: comparison with float64, no waiting for the device, and exact resuming."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_one_rank import check_resuming
from torch import Tensor
from toy_training import MODEL, VOCAB, toy_batch, toy_config

from mtformer.config.schema import ModelConfig
from mtformer.data.batching.batches import Batch, make_batch
from mtformer.model.transformer import Transformer
from mtformer.training import loss as loss_module
from mtformer.training.loss import PAD, linear_cross_entropy
from mtformer.training.step import TrainingStep
from mtformer.training.train_window import TrainWindow

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
TOLERANCE = {"fp32": 2e-5, "bf16": 1e-2, "fp16": 2e-3}
"""Relative tolerance of the loss; for gradients, the tolerance is twice this share of their norm."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDE = ModelConfig(
    d_model=128, num_heads=2, d_ff=64, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0, activation="gelu"
)
"""Heads of width 64, as in real models. ReLU would require larger tolerances, because its gradient is discontinuous."""
precisions = pytest.mark.parametrize("precision", TOLERANCE)


def on_device(config: ModelConfig, precision: str, **training: Any) -> TrainingStep:
    torch.manual_seed(1)
    model = Transformer(config, VOCAB, VOCAB, compute_dtype=DTYPES[precision]).to(DEVICE)
    return TrainingStep(model, toy_config(**training).training)


def in_float64(like: TrainingStep) -> TrainingStep:
    """Return a step with the same weights on the CPU."""
    exact = Transformer(like.model.config, VOCAB, VOCAB, compute_dtype=torch.float64).double()
    exact.load_state_dict({name: weight.cpu().double() for name, weight in like.model.state_dict().items()})
    return TrainingStep(exact, toy_config().training)


def weights(step: TrainingStep) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()])


def loss_and_gradient(step: TrainingStep, batch: Batch) -> tuple[float, Tensor]:
    """Return loss and gradient; in fp16, the loss is scaled as in training."""
    scale = 1024.0 if step.precision == "fp16" else 1.0
    step.model.train()
    loss, _, _ = step.loss(batch)
    (loss * scale / batch.num_tgt_tokens).backward()
    gradient = torch.cat([parameter.grad.double().cpu().flatten() for parameter in step.model.parameters()]) / scale
    step.optimizer.zero_grad()
    return loss.item(), gradient


def assert_agree(step: TrainingStep, exact: TrainingStep, batch: Batch) -> None:
    loss, gradient = loss_and_gradient(step, batch)
    expected_loss, expected_gradient = loss_and_gradient(exact, batch)
    tolerance = TOLERANCE[step.precision]
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    assert gradient.isfinite().all()
    assert (gradient - expected_gradient).norm() < 2 * tolerance * expected_gradient.norm()


def batch_of(S: int, T: int) -> Batch:
    """Return three pairs, the longest with S and T tokens including special ones."""
    generator = torch.Generator().manual_seed(100 * S + T)
    lengths = [(S - 1, T - 1), (S // 2, T // 3), (S // 3, T // 2)]
    sides = [[torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in pair] for pair in lengths]
    return make_batch([(src, tgt) for src, tgt in sides])


# ---- correctness ----------------------------------------------------------------------------------------------------


@precisions
def test_loss_and_gradient_agree_with_float64_at_all_lengths(precision: str) -> None:
    """Test odd and even lengths: kernels differ at multiples of 8 and have failed at individual lengths."""
    step = on_device(WIDE, precision)
    exact = in_float64(step)
    for S in range(1, 71):
        assert_agree(step, exact, batch_of(S, 71 - S))


OPTIONS = [
    {"norm_position": "post", "positions": "learned"},
    {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 1},
    {"activation": "relu", "tie_embeddings": "none"},
    {"activation": "geglu", "tie_embeddings": "output", "norm_position": "post", "norm": "rmsnorm"},
]


@precisions
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_loss_and_gradient_agree_with_float64_with_other_options(options: dict[str, Any], precision: str) -> None:
    step = on_device(ModelConfig(**{**WIDE.model_dump(), **options}), precision)
    assert_agree(step, in_float64(step), batch_of(13, 22))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
def test_chunked_loss_with_a_vocabulary_of_32k_pieces(dtype: torch.dtype) -> None:
    N, D, V, smoothing = 4_099, 64, 32_000, 0.1
    assert 2 * loss_module.CHUNK_LOGITS["cuda"] < N * V, "the test needs more than two chunks"
    torch.manual_seed(1)
    hidden = torch.randn(N, D).to(DEVICE, dtype).requires_grad_()
    weight = (torch.randn(V, D) * 0.3).to(DEVICE).requires_grad_()
    target = torch.randint(1, V, (N,)).to(DEVICE)
    target[::5] = PAD
    loss, _, nll = linear_cross_entropy(hidden, weight, target, smoothing)
    scale = 2.0**-12  # a mean, as in training; the sum would overflow in float16
    gradients = torch.autograd.grad(loss * scale, (hidden, weight))

    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight.to(dtype)))
    log_p = (exact_hidden @ exact_weight.t()).log_softmax(dim=1)[target != PAD]
    exact_nll = -log_p.gather(1, target[target != PAD].unsqueeze(1)).sum()
    exact_loss = (1 - smoothing) * exact_nll - smoothing / (V - 1) * log_p[:, PAD + 1 :].sum()
    exact_gradients = torch.autograd.grad(exact_loss * scale, (exact_hidden, exact_weight))
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert loss.item() == pytest.approx(exact_loss.item(), rel=tolerance)
    assert nll.item() == pytest.approx(exact_nll.item(), rel=tolerance)
    for ours, theirs in zip(gradients, exact_gradients, strict=True):
        assert (ours.double() - theirs).norm() < 2 * tolerance * theirs.norm()


@precisions
def test_training_reduces_the_loss(precision: str) -> None:
    step = on_device(MODEL, precision, learning_rate=1e-2, schedule="constant", warmup_steps=20)
    losses = [step.run([toy_batch(n % 4)], n).nll for n in range(1, 151)]
    assert float(sum(losses[-8:])) < 0.55 * float(sum(losses[:8]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_equals_eager(precision: str) -> None:
    """Use a large eps: the gradient of a key bias is 0 except for rounding, which Adam would amplify to a full step."""
    tolerance = {"fp32": 1e-4, "bf16": 3e-2}[precision]
    settings = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant", "eps": 1e-3}
    eager, compiled = (on_device(WIDE, precision, compile=compile, **settings) for compile in ("never", "always"))
    before = weights(eager).clone()
    for number, (S, T) in enumerate([(9, 14), (20, 11), (16, 16)], start=1):
        losses = [float(step.run([batch_of(S, T)], number).loss) for step in (eager, compiled)]
        assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    moved, difference = weights(eager) - before, weights(eager) - weights(compiled)
    assert difference.norm() < 10 * tolerance * moved.norm()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_resuming_in_deterministic_mode_is_exact(precision: str, tmp_path: Path) -> None:
    check_resuming(tmp_path, DEVICE.type, precision, "alone")


# ---- speed and memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def _no_waiting() -> Iterator[None]:
    """Reset `torch.cuda.set_sync_debug_mode`, which tests set to raise an error if the host waits for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@precisions
@pytest.mark.usefixtures("_no_waiting")
def test_steps_never_wait_for_the_device(precision: str) -> None:
    """Several micro-batches, new shapes, skipped steps and the sums of a log line do not make the host wait."""
    step, window = on_device(MODEL, precision), TrainWindow()
    batches = [toy_batch(number, num_pairs=4 + number).pin_memory() for number in range(6)]
    for number in (1, 2):  # the first steps allocate the moments and move the sums of the window to the device
        window.add([batches[0]], step.run([batches[0]], number))
    torch.cuda.set_sync_debug_mode("error")
    results = []
    for number in range(3, 8):
        micro_batches = [batches[number % 6], batches[(number + 1) % 6]]
        if number == 6:
            handle = step.model.decoder_norm.weight.register_hook(lambda grad: grad * math.nan)
        results.append(step.run(micro_batches, number))
        window.add(micro_batches, results[-1])
    with pytest.raises(RuntimeError, match="synchroniz"):
        results[-1].loss.item()
    torch.cuda.set_sync_debug_mode("default")
    handle.remove()
    assert [bool(result.is_finite) for result in results] == [True, True, True, False, False]
    assert all(result.loss > 0 for result in results)
    assert int(step.skipped_in_a_row) == 2
    assert window.figures()["skipped_steps"] == 2


@precisions
def test_a_non_finite_gradient_changes_nothing(precision: str) -> None:
    step = on_device(MODEL, precision)
    step.run([toy_batch(1)], 1)
    before = weights(step).clone()
    handle = step.model.decoder_norm.weight.register_hook(lambda grad: grad * math.inf)
    assert not step.run([toy_batch(2)], 2).is_finite
    assert torch.equal(weights(step), before)
    handle.remove()
    assert step.run([toy_batch(2)], 3).is_finite
    assert not torch.equal(weights(step), before)


def test_loss_memory_does_not_grow_with_tokens_times_vocabulary_size() -> None:
    D, V = 64, 32_000
    weight = torch.randn(V, D, device=DEVICE, requires_grad=True)
    peaks = []
    counts = (8_000, 32_000)
    for N in counts:
        hidden = torch.randn(N, D, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        target = torch.randint(1, V, (N,), device=DEVICE)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        linear_cross_entropy(hidden, weight, target, 0.1)[0].backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    all_logits = (counts[1] - counts[0]) * V * 2
    assert peaks[1] - peaks[0] < all_logits / 20


def test_the_largest_batch_that_suits_the_device_fits() -> None:
    step = on_device(WIDE, "bf16")
    tokens = step.max_batch_tokens(batch_of(64, 64))
    assert tokens > 64
    step.try_batch(make_batch([([5] * 63, [5] * 62)] * (tokens // 64)))
    assert step.max_padded_tokens is None
