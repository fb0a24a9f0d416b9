"""Where everything of one run lies, and how a file is written: whole or not at all.

Names of files live here and nowhere else.

    RUN/config.yaml                       the resolved config; alone it reproduces the run
    RUN/tokenizer/{joint,src,tgt}.model   SentencePiece
    RUN/data_report.json                  pairs read, kept and left out, by reason
    RUN/metrics.jsonl                     one object per log line and validation, append only
    RUN/train.log                         what the terminal showed
    RUN/checkpoints/step-00001000/        model.safetensors, trainer.pt, meta.json
    RUN/checkpoints/averaged/             model.safetensors, meta.json
    RUN/eval/NAME/                        hypotheses.txt, scores.json

A bundle is the same folder with only config.yaml, tokenizer/ and model.safetensors.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError

WEIGHTS = "model.safetensors"
TRAINER_STATE = "trainer.pt"
META = "meta.json"
LOWER_IS_BETTER = ("loss", "perplexity")
"""Dev metrics that fall as a model improves; of the others more is better."""


class RunDir:
    """Paths inside one run directory (or bundle)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunDir":
        """An existing run or bundle; raises CheckpointError when it is none."""
        run = cls(path)
        if not run.config.is_file():
            raise CheckpointError(f"{path}: not a run directory or bundle (it has no config.yaml)")
        return run

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def data_report(self) -> Path:
        return self.path / "data_report.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "train.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def averaged(self) -> Path:
        return self.checkpoints / "averaged"

    @property
    def bundle_weights(self) -> Path:
        return self.path / WEIGHTS

    @property
    def is_bundle(self) -> bool:
        return self.bundle_weights.is_file()

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def evaluation(self, name: str) -> Path:
        return self.path / "eval" / name

    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint, ascending."""
        whole = [path.name[5:] for path in self.checkpoints.glob("step-*") if (path / META).is_file()]
        return sorted(int(number) for number in whole if number.isdigit())

    def regular_steps(self) -> list[int]:
        """`steps` without those that were only saved because the run was interrupted."""
        return [step for step in self.steps() if not read_meta(self.checkpoint(step)).get("is_temporary", False)]

    def best_steps(self, metric: str) -> list[int]:
        """Steps whose checkpoint knows this dev metric, the best first, the earlier one when equal."""
        values = {step: read_meta(self.checkpoint(step))["metrics"].get(metric) for step in self.steps()}
        sign = 1 if metric in LOWER_IS_BETTER else -1
        return sorted(
            (step for step, value in values.items() if value is not None), key=lambda s: (sign * values[s], s)
        )


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a checkpoint: step, metrics, sha256; raises CheckpointError when it is not readable."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / META}: not readable ({error})") from error
    return meta


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success it is synced and renamed to `path`, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; on success its files are synced and it takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        _sync(temporary)
        if path.exists():
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            os.rename(path, old)
            os.rename(temporary, path)
            shutil.rmtree(old)
        else:
            os.rename(temporary, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a small UTF-8 file whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def file_sha256(path: str | Path) -> str:
    """Hash of a file's bytes, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
