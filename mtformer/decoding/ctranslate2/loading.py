"""Loading of converted models, whose files are verified before CTranslate2 reads them."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from mtformer.decoding.ctranslate2.engine import PRECISIONS, CTranslate2Engine
from mtformer.decoding.search.engine import MAX_WORKERS
from mtformer.errors import CheckpointError, ConfigError, DeviceError
from mtformer.files import CHECKSUMS, read_meta, unchanged, verify
from mtformer.run_dir import CT2_VOCABULARY_MAP, CT2_WEIGHTS
from mtformer.text.tokenizer import TokenizerPair

READ_BY_LIBRARY = re.compile(
    rf"{re.escape(CT2_WEIGHTS)}|config\.json|\w*vocabulary\.\w+|{re.escape(CT2_VOCABULARY_MAP)}"
)
"""Names of the files of a converted model that the library opens itself."""


def import_ctranslate2() -> ModuleType:
    """Return the `ctranslate2` module; raise ConfigError if it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise ConfigError("CTranslate2 is not installed; to install it: pip install 'mtformer[ctranslate2]'") from error


def open_model(
    folder: Path, tokenizers: TokenizerPair, max_positions: int, device: str, precision: str | None
) -> CTranslate2Engine:
    """Load a converted model.

    Args:
        folder: folder of the model.
        tokenizers: tokenizers of the model.
        max_positions: maximum length of source and target, including eos.
        device: `auto` (CUDA if the library finds a device), `cpu` or `cuda`.
        precision: `fp32`, `bf16`, `fp16`, `int8`, or `auto` (the fastest); None: that of the stored weights, or the
            closest one that the device supports.

    Raise CheckpointError if the model is missing or damaged, DeviceError for a wrong device or precision.
    """
    library = import_ctranslate2()
    device = _pick_device(library, device)
    compute_type = _compute_type(library, device, precision)
    num_threads = torch.get_num_threads()
    num_workers = min(num_threads, MAX_WORKERS) if device == "cpu" else 1
    threads_per_worker = num_threads // num_workers
    try:
        with _verified(folder):
            model = library.Translator(
                str(folder),
                device=device,
                compute_type=compute_type,
                inter_threads=num_workers,
                intra_threads=threads_per_worker,
                max_queued_batches=-1,
            )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder}: cannot be loaded ({reason}); export it again") from error

    torch.set_num_threads(num_threads)  # the library changes the OpenMP setting
    has_vocabulary_map = (folder / CT2_VOCABULARY_MAP).is_file()
    return CTranslate2Engine(model, tokenizers, max_positions, has_vocabulary_map)


def _pick_device(library: ModuleType, device: str) -> str:
    has_cuda = library.get_cuda_device_count() > 0
    available = ["cuda", "cpu"] if has_cuda else ["cpu"]
    if device == "auto":
        return available[0]
    if device not in available:
        names = ", ".join(["auto", *available])
        raise DeviceError(f"device '{device}': CTranslate2 finds no such device; use {names}")
    return device


def _compute_type(library: ModuleType, device: str, precision: str | None) -> str:
    """Return the library's name of a precision; raise DeviceError if the device does not support it."""
    compute_types = library.get_supported_compute_types(device)
    supported = {"default", "auto", *compute_types}
    usable = {name: library_name for name, library_name in PRECISIONS.items() if library_name in supported}
    if precision not in usable:
        names = ", ".join(name for name in usable if name is not None)
        raise DeviceError(f"precision '{precision}': CTranslate2 does not support it on {device}; use {names}")
    return usable[precision]


@contextmanager
def _verified(folder: Path) -> Iterator[None]:
    """Verify the files that the library reads; raise CheckpointError if one changes until the end of the context."""
    listed = read_meta(folder, CHECKSUMS)["sha256"]
    present = [path.name for path in folder.iterdir()]
    names = [name for name in dict.fromkeys((*listed, *present)) if READ_BY_LIBRARY.fullmatch(name)]
    paths = [folder / name for name in names]
    with unchanged(*paths):
        verify(folder, CT2_WEIGHTS, *names, listing=CHECKSUMS)
        yield
