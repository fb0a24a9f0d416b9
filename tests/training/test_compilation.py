"""The model under `torch.compile` with the branches for CUDA, on a CPU."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from simulated_gpu import WITHOUT_KERNEL, attention_as_on_cuda
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import async_compile
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from mtformer.config.schema import ModelConfig, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.device import DTYPES
from mtformer.model import kernels, ops, transformer
from mtformer.model.transformer import Transformer
from mtformer.training.step import TrainingStep
from mtformer.training.weight_copies import WeightCopies

V = 500
TOY = {"d_model": 64, "d_ff": 128, "num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODERN = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 2}
NUM_PROJECTIONS = 11
"""Projections of TOY: 4 in the encoder layer and 7 in the decoder layer, where keys of the source are separate."""
LAUNCHES = 75
CALL = r"^ +(?:\w+ = )?(cpp_fused|extern_kernels\.\w+|(?:torch\.ops\.)?aten\.\w+)[\w.]*\("
"""Call of a kernel in Inductor's code."""


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    """Discard the code that other tests compiled, because the number of compilations is limited."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def toy_model(device: str, precision: str, **options: Any) -> Transformer:
    with torch.device(device):
        return Transformer(ModelConfig(**{**TOY, **options}), V, V, compute_dtype=DTYPES[precision])


def run(step: TrainingStep, B: int, S: int, T: int) -> None:
    """Compute the gradients for a batch of this size."""

    def ids(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.long, device=step.device)

    batch = Batch(ids(B, S), ids(B, T), ids(B, T), ids(B) * S, B, B * S, B * T)
    step.objective.train()
    step.loss(batch)[0].backward()


@pytest.mark.parametrize(
    ("precision", "options", "limit"), [("bf16", {}, 155), ("fp32", MODERN, 245)], ids=["bf16", "fp32 modern"]
)
def test_one_compilation_is_enough_for_all_shapes(
    precision: str,
    options: dict[str, Any],
    limit: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Tensors on the meta device take the branches for CUDA. The sizes of the first batch are all equal."""
    graphs: list[fx.GraphModule] = []

    def collect(graph: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=collect, bw_compiler=collect)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend, fullgraph=True))
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention_as_on_cuda)
    step = TrainingStep(toy_model("meta", precision, **options), TrainingConfig(compile="always"))
    for B, S, T in [(8, 8, 8), (4, 5, 6), (8, 7, 9), (8, 8, 16), (9, 33, 12)]:
        run(step, B, S, T)
    assert len(graphs) == 2, "the model was compiled again for other shapes"
    called = Counter(
        node.target.overloadpacket.__name__
        for graph in graphs
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )
    assert called["_scaled_dot_product_flash_attention"] == (1 if precision == "bf16" else 0)
    assert called["_scaled_dot_product_efficient_attention"] == (2 if precision == "bf16" else 3)
    launching = Counter({name: number for name, number in called.items() if name not in WITHOUT_KERNEL})
    print(f"operators of a compiled step before fusion, {precision}: {launching.total()} {launching.most_common(12)}")
    record_property("operators", launching.total())
    assert launching.total() <= limit


def test_launches_of_a_compiled_step(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Count the kernels of Inductor's code for a CPU, without compiling or running those that it writes itself."""
    monkeypatch.setattr(transformer, "kernel_mask", kernels.additive_mask)
    monkeypatch.setattr(kernels, "CPU_FUSED_FROM", {torch.bfloat16: 0})
    monkeypatch.setattr(ops, "dropout", functional.dropout)
    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    step = TrainingStep(toy_model("cpu", "bf16"), TrainingConfig())
    step.copies = WeightCopies(step.model, torch.bfloat16)
    # Static shapes and scalar code take less time to compile and have the same kernels.
    compile = functools.partial(torch.compile, fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: compile(model, dynamic=False))
    step.compile()
    with inductor_config.patch({"force_disable_caches": True, "cpp.simdlen": 1}):
        _, codes = run_and_get_code(run, step, 8, 7, 9)
    launches = Counter(re.findall(CALL, "\n".join(codes), re.MULTILINE))
    print(f"launches of a compiled step of a model with 1 + 1 layers: {launches.total()} {launches.most_common()}")
    record_property("launches", launches.total())
    assert launches["extern_kernels.addmm"] + launches["extern_kernels.mm"] == 3 * NUM_PROJECTIONS
    assert launches.total() <= LAUNCHES
