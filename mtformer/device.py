"""Choice of device and precision, and memory settings."""

import ctypes
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mtformer.errors import DeviceError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64, "LRU_CACHE_CAPACITY": 32}
"""Sizes of oneDNN's kernel caches. A kernel, with its scratch memory, is for one shape, and nearly every batch has
other shapes: of the default of 1,024 only those of the same step are reused, and the others grow to gigabytes
(docs/benchmarks.md)."""
log = logging.getLogger("mtformer")


def pick_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`; raise DeviceError if CUDA is requested and not available."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device '{name}': no such device; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "device 'cuda': PyTorch sees no CUDA device here; use device cpu or auto, or install a CUDA build"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def pick_precision(name: str, device: torch.device) -> str:
    """Return the precision, with `auto` replaced by the fastest one: `bf16`, `fp16` (older GPUs) or `fp32` (CPUs).

    Raises:
        DeviceError: if the device does not have this precision.
    """
    if name == "int8":
        raise DeviceError(
            "precision 'int8' needs CTranslate2: use --backend ctranslate2, or precision auto, fp32, bf16 or fp16"
        )
    if name not in ("auto", *DTYPES):
        raise DeviceError(f"precision '{name}': no such precision; use auto, fp32, bf16 or fp16")
    if name == "fp16" and device.type == "cpu":
        raise DeviceError("precision 'fp16' needs a CUDA device; on a CPU use auto, bf16 or fp32")
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError("precision 'bf16': this GPU does not have it; use fp16 or fp32")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if _has_bf16_instructions():
        return "bf16"
    return "bf16" if _cpu_product_seconds(torch.bfloat16) * 1.3 < _cpu_product_seconds(torch.float32) else "fp32"


def _has_bf16_instructions() -> bool:
    """Return True if the processor is known to have bf16 instructions; timing on a busy machine can be wrong."""
    checks = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    return any(check() for check in checks if check is not None)


def _cpu_product_seconds(dtype: torch.dtype) -> float:
    """Return the time of a matrix product of a small model's size, the best of 6: about 10 ms in all."""
    a, b = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return best


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of the process so far (on CUDA: of its tensors on the device); 0 if unknown (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if os.name == "nt":
        return 0
    import resource

    # In kilobytes on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True for an out-of-memory error; that of the CPU's allocator is known by its message only."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def be_deterministic() -> None:
    """Make CUDA kernels deterministic. Call before the first of them runs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)


def set_up_kernels(device: torch.device) -> None:
    """Choose the kernels of this process if `device` is a CUDA device. Call before the model runs there.

    cuDNN's attention is disabled: with explicit masks its gradients are NaN at some lengths (pytorch#196678), and in
    bf16 and fp16 it builds a new plan for each key length, 20 to 40 ms at each step of a search. Matrix products add up
    in float32, also where cuBLAS splits a sum, and fp32 is not rounded to TF32.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Compute with this number of threads in the context; the last bits of sums on a CPU depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_up_memory() -> None:
    """Keep freed memory (glibc) and few kernels of earlier shapes (oneDNN). Call before anything is computed.

    Training frees and allocates the same megabytes at every step; by default that is a page fault for every 4 KiB,
    which was measured to cost up to half of the time of training on a CPU.
    """
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, str(capacity))  # read when the first product is computed
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc, such as musl
        return
    m_trim_threshold, m_mmap_threshold, m_mmap_max = -1, -3, -4
    mallopt(m_trim_threshold, (1 << 31) - 1)
    if not mallopt(m_mmap_threshold, 1 << 30):  # older versions refuse more than 32 MiB
        mallopt(m_mmap_max, 0)
