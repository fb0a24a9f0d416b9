"""Loading of converted models, whose files are verified before CTranslate2 reads them."""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mtformer.decoding.ctranslate2.engine import PRECISIONS, CTranslate2Engine
from mtformer.decoding.search.engine import MAX_WORKERS
from mtformer.errors import CheckpointError, ConfigError, DeviceError
from mtformer.files import CHECKSUMS, read_bytes, read_json, read_meta, unchanged, verify
from mtformer.formatting import printable
from mtformer.run_dir import CT2_VOCABULARY_MAP, CT2_WEIGHTS
from mtformer.text.tokenizer import BOS, EOS, UNK, TokenizerPair
from mtformer.weights import REASON_LENGTH

READ_BY_LIBRARY = re.compile(
    rf"{re.escape(CT2_WEIGHTS)}|config\.json|\w*vocabulary\.\w+|{re.escape(CT2_VOCABULARY_MAP)}"
)
"""Names of the files of a converted model that the library opens itself."""
SHARED_VOCABULARY = "shared_vocabulary.json"
"""Vocabulary of a converted model if source and target have the same."""
WITHOUT_SEPARATORS = str.maketrans("", "", " \t\r\n")
"""Translation table that removes the characters that separate pieces in vmap.txt."""
MAX_MAP_BYTES = 1_000_000_000
"""Maximum size of a vocabulary map in bytes."""


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
            _require_fitting(folder, tokenizers)
            model = library.Translator(
                str(folder),
                device=device,
                compute_type=compute_type,
                inter_threads=num_workers,
                intra_threads=threads_per_worker,
                max_queued_batches=-1,
            )
    except (RuntimeError, ValueError) as error:  # ValueError: a file is not UTF-8
        reason = printable(str(error), REASON_LENGTH)
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


def _require_fitting(folder: Path, tokenizers: TokenizerPair) -> None:
    """Raise CheckpointError if the names of pieces in a converted model are not those of its tokenizers.

    The library does not compare them, and ends the process if a vocabulary map has no candidates.
    """
    src_pieces = tokenizers.src.vocabulary()
    tgt_pieces = tokenizers.tgt.vocabulary()
    _require_contents(folder / "config.json", special_names(tgt_pieces))
    if (folder / SHARED_VOCABULARY).exists():
        _require_pieces(folder / SHARED_VOCABULARY, src_pieces)
        _require_pieces(folder / SHARED_VOCABULARY, tgt_pieces)
    else:
        _require_pieces(folder / "source_vocabulary.json", src_pieces)
        _require_pieces(folder / "target_vocabulary.json", tgt_pieces)

    vocabulary_map = folder / CT2_VOCABULARY_MAP
    if vocabulary_map.exists() and not _is_vocabulary_map(read_bytes(vocabulary_map, MAX_MAP_BYTES), tgt_pieces):
        raise CheckpointError(f"{vocabulary_map}: not a vocabulary map of this model; export it again")


def special_names(tgt_pieces: Sequence[str]) -> dict[str, object]:
    """Return the entries of a converted model's config.json that determine its special pieces."""
    return {
        "unk_token": tgt_pieces[UNK],
        "bos_token": tgt_pieces[BOS],
        "eos_token": tgt_pieces[EOS],
        "decoder_start_token": tgt_pieces[BOS],
        "add_source_eos": True,
    }


def _require_contents(path: Path, expected: Mapping[str, object]) -> None:
    """Raise CheckpointError if a JSON object does not have the expected entries."""
    contents = _read_json(path)
    if not isinstance(contents, dict) or not expected.items() <= contents.items():
        raise CheckpointError(f"{path}: does not fit the tokenizer; export the model again")


def _require_pieces(path: Path, pieces: Sequence[str]) -> None:
    """Raise CheckpointError if a vocabulary differs from the pieces of the tokenizer."""
    if _read_json(path) != pieces:
        raise CheckpointError(f"{path}: does not fit the tokenizer; export the model again")


def _read_json(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; export the model again") from None
    except ValueError as error:
        reason = printable(str(error), REASON_LENGTH)
        raise CheckpointError(f"{path}: not JSON ({reason}); export the model again") from error


def _is_vocabulary_map(contents: bytes, tgt_pieces: Sequence[str]) -> bool:
    """Return True if lines have a source piece, a tab and target pieces, and one has the candidates of all pieces."""
    known_pieces = {piece.translate(WITHOUT_SEPARATORS) for piece in tgt_pieces}
    has_common_candidates = False
    for line in contents.decode().removesuffix("\n").split("\n"):
        src_piece, _, text = line.partition("\t")
        candidates = text.split(" ")
        if not known_pieces.issuperset(candidates):
            return False
        has_common_candidates |= src_piece == ""
    return has_common_candidates


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
