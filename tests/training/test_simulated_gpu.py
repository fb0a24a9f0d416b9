"""Training and search on a simulated GPU: no mixed devices, no unnecessary waiting, and few kernel launches."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from simulated_gpu import SimulatedGpu, nested
from torch import Tensor

from mtformer.config.schema import DecodingConfig, ModelConfig, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.device import DTYPES
from mtformer.model import ops, transformer
from mtformer.model.transformer import Transformer
from mtformer.training.step import TrainingStep
from mtformer.training.train_window import TrainWindow

V = 500
TOY = {"d_model": 64, "d_ff": 128, "num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": 1}
BASE = {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6}
MODELS: list[dict[str, Any]] = [
    {},
    {"output_bias": True},
    {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 2},
    {"norm_position": "post", "positions": "learned", "tie_embeddings": "none"},
    {"attention_dropout": 0.1, "activation_dropout": 0.1},
    {"layer_drop": 0.1},
]
TRAININGS: list[dict[str, Any]] = [
    {"consistency": "rdrop"},
    {"consistency": "simcut", "token_dropout": 0.1},
    {"optimizer": "muon"},
]
TRAINING_LAUNCHES = 1200
DECODING_LAUNCHES = {"greedy": 148, "beam": 175}


def model_on(gpu: SimulatedGpu, precision: str = "fp32", vocab: int = V, **options: Any) -> Transformer:
    with torch.device(gpu.device):  # `Module.to` cannot swap fake tensors
        return Transformer(ModelConfig(**{**TOY, **options}), vocab, vocab, compute_dtype=DTYPES[precision])


def batch(B: int = 8, S: int = 7, T: int = 9) -> Batch:
    def ids(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.long)

    return Batch(ids(B, S), ids(B, T), ids(B, T), ids(B), B, B * S, B * T)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("options", "training"), [*((one, {}) for one in MODELS), *((MODELS[1], one) for one in TRAININGS)], ids=str
)
def test_a_training_step_does_not_wait_for_the_device(
    options: dict[str, Any], training: dict[str, Any], precision: str
) -> None:
    with SimulatedGpu() as gpu:
        step = TrainingStep(model_on(gpu, precision, **options), TrainingConfig(ema_decay=0.9, **training))
        window = TrainWindow()
        for number in (1, 2):
            window.add([batch()], step.run([batch()], number))
        gpu.reset()
        batches = [batch(4, 5, 6), batch()]
        window.add(batches, step.run(batches, 3))
        assert gpu.syncs == []


def test_launches_of_a_training_step(record_property: Callable[[str, object], None]) -> None:
    with SimulatedGpu() as gpu:
        step = TrainingStep(model_on(gpu, "bf16", vocab=32_000, **BASE), TrainingConfig())
        one = batch(1024, 32, 32)
        for number in (1, 2):
            step.run([one], number)
        gpu.reset()
        step.run([one], 3)
    print(f"launches of a training step of the base model: {gpu.launches.total()} {gpu.launches.most_common(12)}")
    record_property("launches", gpu.launches.total())
    assert gpu.launches.total() <= TRAINING_LAUNCHES


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 5},
    "certain": {"beam_size": 5, "early_stopping": "certain"},
    "rules": {"beam_size": 5, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    "samples": {"sampling": True, "top_k": 10, "top_p": 0.9},
}
STEPS = 13


def unfinished(what: str, tensor: Tensor) -> Any:
    """Supply values to the host so that no sentence finishes and each may have STEPS - 1 tokens."""
    if what == "nonzero":
        return tensor.shape[0]
    if what == "tolist":
        return nested(tuple(tensor.shape), 1)
    return 1.0 if tensor.is_floating_point() else STEPS - 1


def search(gpu: SimulatedGpu, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Run a search and return the numbers of synchronizations and launches before each step."""
    model = model_on(gpu, **options).eval().requires_grad_(False)
    return search_with(model, gpu, settings, monkeypatch)


def search_with(
    model: Transformer, gpu: SimulatedGpu, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    marks: list[Any] = []
    real = InferenceModel.step

    def step(self: InferenceModel, *arguments: Any) -> Any:
        marks.append((len(gpu.syncs), gpu.launches.total()))
        return real(self, *arguments)

    monkeypatch.setattr(InferenceModel, "step", step)
    segments = [Segment([5] * 6, line) for line in range(4)]
    list(TransformerEngine([InferenceModel(model)]).search([segments], DecodingConfig(**settings)))
    return marks


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES.keys())
def test_search_waits_at_most_at_every_fourth_step(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with SimulatedGpu(unfinished) as gpu:
        marks = search(gpu, settings, monkeypatch)
    assert len(marks) == STEPS
    assert marks[-1][0] - marks[0][0] <= STEPS // 4, gpu.syncs


@pytest.mark.parametrize("name", DECODING_LAUNCHES)
def test_launches_of_a_decoding_step(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    with SimulatedGpu(unfinished) as gpu:
        marks = search(gpu, SEARCHES[name], monkeypatch, **BASE)
    launches = sorted(after[1] - before[1] for before, after in pairwise(marks))
    print(f"launches of a decoding step of the base model, {name}: {launches}")
    record_property("launches", launches)
    assert launches[len(launches) // 2] <= DECODING_LAUNCHES[name]


@pytest.mark.parametrize("name", DECODING_LAUNCHES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_launches_of_a_decoding_step_in_validation(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The weights are float32, but they are not cast at each step."""
    with SimulatedGpu(unfinished) as gpu:
        step = TrainingStep(model_on(gpu, precision, **BASE), TrainingConfig(ema_decay=0.9))
        with step.ema_weights():
            marks = search_with(step.search_model().eval(), gpu, SEARCHES[name], monkeypatch)
    launches = sorted(after[1] - before[1] for before, after in pairwise(marks))
    print(f"launches of a decoding step in validation, {name}, {precision}: {launches}")
    record_property("launches", launches)
    assert launches[len(launches) // 2] <= DECODING_LAUNCHES[name]


def test_mixed_devices_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "padding_mask", lambda lengths_B, S: torch.arange(S) < lengths_B.unsqueeze(-1))
    with SimulatedGpu() as gpu, pytest.raises(Exception, match=r"same device|different devices"):
        TrainingStep(model_on(gpu, "bf16"), TrainingConfig()).run([batch()], 1)


def test_waiting_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ops.padding_mask
    monkeypatch.setattr(transformer, "padding_mask", lambda lengths_B, S: real(lengths_B, int(lengths_B.max())))
    with SimulatedGpu(lambda what, tensor: 7) as gpu:
        TrainingStep(model_on(gpu, "bf16"), TrainingConfig()).run([batch()], 1)
    assert len(gpu.syncs) == 1
    assert gpu.syncs[0].startswith("_local_scalar_dense in model/transformer.py") or "item" in gpu.syncs[0]
