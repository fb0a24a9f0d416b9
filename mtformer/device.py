"""The device, its fastest precision, and the settings of its memory."""

import ctypes
import logging
import os
import sys
import time

import torch

from mtformer.errors import DeviceError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64, "LRU_CACHE_CAPACITY": 32}
"""oneDNN keeps kernels, with their scratch memory, by the shapes they are for. Nearly every batch has other shapes, so
of its default of 1,024 each only those of the same step are found again, and the rest grows to gigabytes (LOG.md)."""
log = logging.getLogger("mtformer")


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` -> the device; raises DeviceError when CUDA is asked for and not there."""
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
            "precision 'int8' needs CTranslate2: use `mtformer export --format ctranslate2` and --backend ctranslate2 "
            "with the folder that it writes; or precision auto, fp32, bf16 or fp16"
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
    if _says_it_multiplies_bf16():
        return "bf16"
    return "bf16" if _cpu_product_seconds(torch.bfloat16) * 1.3 < _cpu_product_seconds(torch.float32) else "fp32"


def _says_it_multiplies_bf16() -> bool:
    """Whether the processor has instructions for it, as far as PyTorch knows: a busy machine may measure anything."""
    asked = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    return any(ask() for ask in asked if ask is not None)


def _cpu_product_seconds(dtype: torch.dtype) -> float:
    """The best of a few runs of a product of a small model's size: some 10 ms."""
    a, b = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return best


def peak_bytes(device: torch.device) -> int:
    """The most memory that the process (on CUDA: its tensors on the device) has had in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # which Windows does not have

    # In kilobytes on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def be_deterministic() -> None:
    """From now on CUDA kernels give the same bits for the same numbers; to be called before the first of them runs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for that
    torch.use_deterministic_algorithms(True)


def disable_cudnn_attention(device: torch.device) -> None:
    """Disable cuDNN's attention in this process if `device` is a CUDA device. Call before the model runs there.

    With explicit masks its gradients are NaN at some lengths (pytorch#196678), and in bf16 and fp16 it builds a new
    plan for each key length, 20 to 40 ms at each step of a search.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def set_up_memory() -> None:
    """Keeps freed memory (glibc), and few kernels of shapes that were (oneDNN). Called before anything is computed.

    Training frees and takes the same megabytes at every step; by default each round trip is a page fault for every
    4 KiB, which was measured to cost up to half of a CPU training's time.
    """
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, str(capacity))  # read when the first product is computed
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc (musl): it has its own ways
        return
    m_trim_threshold, m_mmap_threshold, m_mmap_max = -1, -3, -4
    mallopt(m_trim_threshold, (1 << 31) - 1)
    if not mallopt(m_mmap_threshold, 1 << 30):  # older versions refuse more than 32 MiB
        mallopt(m_mmap_max, 0)
