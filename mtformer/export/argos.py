"""Packages for Argos Translate and LibreTranslate: a CTranslate2 model, its tokenizer and metadata in a zip file."""

import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mtformer.config.languages import language_name
from mtformer.config.schema import Config
from mtformer.decoding.ctranslate2.conversion import write_model
from mtformer.errors import log
from mtformer.files import atomic_file
from mtformer.text.tokenizer import BYTE_PIECE, TokenizerPair

FILE_MODE = 0o644
"""Permissions of the files in a package."""
UNIX_MODE_BITS = 16
"""Number of bits before the Unix permissions in the attributes of a zip entry."""


def write_argos(
    folder: Path, config: Config, tokenizers: TokenizerPair, weights: Sequence[Path], quantization: str | None
) -> None:
    """Write the files of a package.

    Args:
        folder: an existing folder.
        config: config of the run, which `require_export` has accepted.
        tokenizers: the joint tokenizer of the run, for both sides.
        weights: weight files; their mean is written.
        quantization: type of the stored weights, see `write_model`.
    """
    if any(map(BYTE_PIECE.fullmatch, tokenizers.tgt.vocabulary())):
        log.warning("tokenizer.byte_fallback: Argos Translate shows a character spelled in bytes as <0x..>")

    (folder / "sentencepiece.model").write_bytes(tokenizers.src.model)
    tokenizers.save_rules(folder)

    data = config.data
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.10",
        "from_code": data.src_lang,
        "from_name": language_name(data.src_lang),
        "to_code": data.tgt_lang,
        "to_name": language_name(data.tgt_lang),
    }
    text = json.dumps(metadata, indent=1)
    (folder / "metadata.json").write_text(f"{text}\n", encoding="utf-8")

    model_folder = folder / "model"
    model_folder.mkdir()
    write_model(model_folder, weights, config.model, tokenizers, quantization)


@contextmanager
def atomic_archive(target: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder; on success, write it to `target` as a zip file that contains it under `name`."""
    with atomic_file(target) as temporary, TemporaryDirectory(dir=temporary.parent, prefix=temporary.name) as parent:
        folder = Path(parent, name)
        folder.mkdir()
        yield folder
        _write_archive(temporary, folder)


def _write_archive(target: Path, folder: Path) -> None:
    """Write a zip file that contains a folder; the same contents always produce the same bytes."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix())  # with the same time in each archive
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = FILE_MODE << UNIX_MODE_BITS
            entry.file_size = path.stat().st_size  # large files need a larger header
            with path.open("rb") as file, archive.open(entry, "w") as compressed:
                shutil.copyfileobj(file, compressed)
