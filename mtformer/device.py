"""Device and precision selection, and memory settings."""

import ctypes
import os
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mtformer.errors import DeviceError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes by precision."""
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
"""Precisions by dtype."""
BF16_SPEEDUP = 1.3
"""Smallest speedup of a matrix product for which `auto` chooses bf16 on a CPU that reports no bf16 instructions."""
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64, "LRU_CACHE_CAPACITY": 32}
"""Sizes of oneDNN's kernel caches. Each kernel, with its scratch memory, serves one shape, and nearly every batch has
new shapes. At the default size of 1,024, only kernels of the current step are reused, and the others take up gigabytes
(docs/benchmarks.md)."""
ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""Environment variable with the settings of PyTorch's CUDA allocator."""
OLD_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Deprecated names of this variable, which users may still set."""
EXPANDABLE_SEGMENTS = "expandable_segments:True"
"""Setting with which the CUDA allocator extends its segments. By default, memory that was allocated for a batch of one
shape may be too fragmented for that of another shape; nearly every batch has a new shape."""
M_TRIM_THRESHOLD = -1
"""Parameter of glibc's `mallopt`: free memory at the top of the heap that is kept."""
M_MMAP_THRESHOLD = -3
"""Parameter of `mallopt`: size from which memory is mapped, and unmapped when it is freed."""
M_MMAP_MAX = -4
"""Parameter of `mallopt`: maximum number of mapped allocations."""


def pick_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`; raise DeviceError if CUDA is requested but not available."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device '{name}': no such device; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "device 'cuda': PyTorch finds no CUDA device; use device cpu or auto, or install a CUDA build of PyTorch"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def pick_precision(name: str, device: torch.device) -> str:
    """Return the precision, with `auto` replaced by the fastest one: `bf16`, `fp16` (older GPUs) or `fp32` (CPUs).

    Raise DeviceError if the device does not support this precision.
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
        raise DeviceError("precision 'bf16': this GPU does not support it; use fp16 or fp32")
    if name != "auto":
        return name

    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if _has_bf16_instructions():
        return "bf16"
    bf16_seconds = _cpu_product_seconds(torch.bfloat16)
    fp32_seconds = _cpu_product_seconds(torch.float32)
    return "bf16" if bf16_seconds * BF16_SPEEDUP < fp32_seconds else "fp32"


def pick_search_precision(name: str | None, device: torch.device) -> str:
    """Return the precision for search. Default: `fp32` on a CPU, `auto` on CUDA, where `auto` is `fp16`.

    fp16 is as fast as bf16 and has three more bits. Rounding all weights and activations to it does not change BLEU
    (docs/decoding.md); values too large for it are reported as an error.
    """
    if device.type == "cuda" and name in (None, "auto"):
        return "fp16"
    return pick_precision(name or "fp32", device)


def _has_bf16_instructions() -> bool:
    """Return True if the CPU reports bf16 instructions, which is more reliable than timing on a busy machine."""
    checks = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    return any(check() for check in checks if check is not None)


def _cpu_product_seconds(dtype: torch.dtype) -> float:
    """Return the best of 6 timings of a matrix product of the size used in a small model; takes about 10 ms."""
    a = torch.ones(1024, 512, dtype=dtype)
    b = torch.ones(512, 512, dtype=dtype)
    return min(timeit.repeat(lambda: a @ b, number=1, repeat=6))


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory usage of the process in bytes (on CUDA: of its tensors); 0 if unknown (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if os.name == "nt":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux kilobytes
    return peak * unit


def be_deterministic() -> None:
    """Make CUDA kernels deterministic. Call this before the first kernel runs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)


def set_up_kernels(device: torch.device) -> None:
    """Configure the CUDA kernels of this process if `device` is a CUDA device. Call this before running the model.

    cuDNN's attention is disabled: with explicit masks, its gradients are NaN at some lengths (pytorch#196678), and in
    bf16 and fp16, it builds a new plan for each key length, which takes 20 to 40 ms at each decoding step. Matrix
    products are summed in float32, even if cuBLAS splits a sum, and fp32 is not rounded to TF32.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Set the number of threads inside the context; the last bits of sums on a CPU depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_up_memory() -> None:
    """Keep freed memory (glibc), limit the kernel caches (oneDNN) and avoid fragmentation (CUDA).

    Call this before any computation, and before CUDA is initialized. Settings of the user are kept.

    Training frees and reallocates the same memory at every step. By default, this causes a page fault per 4 KiB, which
    takes up to half of the training time on a CPU.
    """
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, str(capacity))  # oneDNN reads it at the first matrix product

    if not sys.platform.startswith("linux"):
        return
    if not any(name in os.environ for name in OLD_ALLOCATORS):
        os.environ.setdefault(ALLOCATOR, EXPANDABLE_SEGMENTS)  # not supported on Windows
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc, such as musl
        return
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    if not mallopt(M_MMAP_THRESHOLD, 1 << 30):  # older glibc versions reject more than 32 MiB
        mallopt(M_MMAP_MAX, 0)
