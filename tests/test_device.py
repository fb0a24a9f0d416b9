"""Device, precision and memory settings, and errors for unavailable devices and precisions."""

import ctypes
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from mtformer import device
from mtformer.config.data import DataConfig
from mtformer.config.schema import Config
from mtformer.decoding import loading
from mtformer.errors import DeviceError
from mtformer.experiment import preflight, train
from mtformer.run_dir import RunDir

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(params=[True, False], ids=["with CUDA", "without CUDA"])
def has_cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return request.param


def test_auto_uses_cuda_if_available(has_cuda: bool) -> None:
    assert device.pick_device("auto") == (CUDA if has_cuda else CPU)
    assert device.pick_device("cpu") == CPU


def test_cuda_is_an_error_if_unavailable(has_cuda: bool) -> None:
    if has_cuda:
        assert device.pick_device("cuda") == CUDA
    else:
        with pytest.raises(DeviceError, match=r"^device 'cuda'.*use device cpu.*$"):
            device.pick_device("cuda")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_precision_on_cuda(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert device.pick_precision("auto", CUDA) == ("bf16" if has_bf16 else "fp16")
    assert device.pick_precision("fp32", CUDA) == "fp32"
    assert device.pick_precision("fp16", CUDA) == "fp16"
    if has_bf16:
        assert device.pick_precision("bf16", CUDA) == "bf16"
    else:
        with pytest.raises(DeviceError, match=r"^precision 'bf16'.*use fp16 or fp32$"):
            device.pick_precision("bf16", CUDA)


@pytest.mark.parametrize(("bf16_seconds", "expected"), [(0.5, "bf16"), (0.9, "fp32"), (2.0, "fp32")])
def test_cpu_precision_is_bf16_if_clearly_faster(
    bf16_seconds: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {torch.bfloat16: bf16_seconds, torch.float32: 1.0}
    monkeypatch.setattr(device, "_cpu_product_seconds", seconds.__getitem__)
    monkeypatch.setattr(device, "_has_bf16_instructions", lambda: False)
    assert device.pick_precision("auto", CPU) == expected
    assert device.pick_precision("bf16", CPU) == "bf16"


def test_cpus_that_report_bf16_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cpu_product_seconds", {torch.bfloat16: 9.0, torch.float32: 1.0}.__getitem__)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert device.pick_precision("auto", CPU) == "bf16"


def test_precision_on_this_cpu_is_bf16_or_fp32() -> None:
    assert device.pick_precision("auto", CPU) in ("bf16", "fp32")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp16", "precision 'fp16' needs a CUDA device; on a CPU use auto, bf16 or fp32"),
        (
            "int8",
            "precision 'int8' needs CTranslate2: use --backend ctranslate2, or precision auto, fp32, bf16 or fp16",
        ),
        ("fp8", "precision 'fp8': no such precision; use auto, fp32, bf16 or fp16"),
    ],
)
def test_precisions_that_cpus_do_not_support(name: str, message: str) -> None:
    with pytest.raises(DeviceError, match=f"^{message}$"):
        device.pick_precision(name, CPU)


def test_device_imports_without_the_resource_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module does not exist on Windows; peak_bytes needs it on a CPU."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert runpy.run_path(device.__file__)["pick_device"]("cpu") == CPU


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="page faults are only counted on Linux")
def test_freed_memory_is_kept() -> None:
    """Repeatedly allocating and freeing a block reuses memory without page faults, after a few rounds."""
    program = """
import resource, torch
from mtformer.device import set_up_memory
def later_faults(num_bytes=64 << 20):
    for turn in range(40):
        if turn == 30:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(num_bytes, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
by_default = later_faults()
set_up_memory()
print(by_default, later_faults())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    by_default, kept = (int(count) for count in done.stdout.split())
    assert kept < by_default / 10


ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@pytest.mark.parametrize(
    ("platform", "before", "after"),
    [
        ("linux", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ("win32", {}, {}),
        ("darwin", {}, {}),
        *[("linux", {name: "max_split_size_mb:64"}, {name: "max_split_size_mb:64"}) for name in ALLOCATORS],
        ("linux", {"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": ""}),
    ],
    ids=str,
)
def test_segments_of_the_cuda_allocator_are_expandable_unless_the_user_says_otherwise(
    platform: str, before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: value for name, value in os.environ.items() if name not in ALLOCATORS}
    monkeypatch.setattr(os, "environ", {**others, **before})
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", failing_load)
    device.set_up_memory()
    assert {name: value for name, value in os.environ.items() if name in ALLOCATORS} == after


def failing_load(name: str) -> None:
    raise OSError(f"no {name}")


CONFIG = Config(data=DataConfig(src_lang="en", tgt_lang="de"))


@pytest.mark.parametrize(
    ("module", "start"),
    [
        (train, lambda: train.train_experiment(CONFIG, RunDir("run"), None, resume=False, overwrite=False)),
        (preflight, lambda: preflight.try_config(CONFIG, RunDir("run"))),
        (loading, lambda: loading.load_transformers([], None, "auto", None)),
    ],
    ids=["train", "try", "translate"],
)
def test_memory_is_set_up_before_the_device_is_chosen(
    module: ModuleType, start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing a CUDA device or a precision initializes CUDA, and the first product initializes oneDNN."""
    events: list[str] = []

    def choose(name: str) -> None:
        events.append("device")
        raise KeyError

    monkeypatch.setattr(module, "set_up_memory", lambda: events.append("memory"))
    monkeypatch.setattr(module, "pick_device", choose)
    with pytest.raises(KeyError):
        start()
    assert events == ["memory", "device"]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
def test_kernels_for_new_shapes_do_not_accumulate_memory() -> None:
    """Compute matrix products of 400 different shapes; a cache of the default size would keep all their kernels."""
    program = """
import resource, sys, torch
from mtformer.device import set_up_memory
if sys.argv[1] == "1":
    set_up_memory()
torch.set_num_threads(1)
weight = torch.ones(512, 256, dtype=torch.bfloat16)
for rows in range(500, 900):
    torch.nn.functional.linear(torch.ones(rows, 256, dtype=torch.bfloat16), weight)
    if rows == 600:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = [
        int(subprocess.run([sys.executable, "-c", program, given], check=True, capture_output=True, timeout=900).stdout)
        for given in "01"
    ]
    assert grown[1] < max(20_000, grown[0] / 2), grown  # kilobytes


def test_search_on_cuda_uses_fp16_by_default() -> None:
    assert [device.pick_search_precision(name, CUDA) for name in (None, "auto", "fp32")] == ["fp16", "fp16", "fp32"]
    assert device.pick_search_precision(None, CPU) == "fp32"
    assert device.pick_search_precision("auto", CPU) == device.pick_precision("auto", CPU)
    with pytest.raises(DeviceError, match="needs a CUDA device"):
        device.pick_search_precision("fp16", CPU)
