"""Paths of a run directory.

Names of files live here and nowhere else.

    RUN/config.yaml                       the resolved config; alone it reproduces the run
    RUN/tokenizer/{joint,src,tgt}.model   SentencePiece
    RUN/checksums.json                    SHA-256 of config.yaml and the tokenizer
    RUN/data_report.json                  pairs read, kept and left out, by reason
    RUN/metrics.jsonl                     one object per log line and validation, append only
    RUN/samples.jsonl                     some dev sentences with their translations, one object per validation
    RUN/train.log                         what the terminal showed
    RUN/tensorboard/, RUN/wandb/          what these programs keep, when training.tensorboard or training.wandb asks
    RUN/state.json                        whether it trains, or how it ended
    RUN/checkpoints/step-00001000/        model.safetensors, trainer.pt, meta.json
    RUN/checkpoints/damaged-step-.../     what resuming found damaged and passed over; nothing reads it any more
    RUN/checkpoints/averaged/             model.safetensors, meta.json
    RUN/eval/NAME/                        scores.json, and what was scored: {sources,references,hypotheses}.txt
    RUN/report.html                       all of this to look at

Of a sweep, whose runs lie in its folder:

    SWEEP/sweep.json                      its runs, the command that trains each, and how that ended
    SWEEP/RUN.log                         what that command printed

A bundle is the same folder with only config.yaml, tokenizer/, model.safetensors and checksums.json. The checksums.json
of an export, bundle or other, lists all files of the folder.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError
from mtformer.files import CHECKSUMS, file_hashes, read_meta, verify, write_checksums, write_text

WEIGHTS = "model.safetensors"
TRAINER_STATE = "trainer.pt"
CT2_WEIGHTS = "model.bin"
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
SCORES = "scores.json"
SOURCES, HYPOTHESES = "sources.txt", "hypotheses.txt"
LOWER_IS_BETTER = ("loss", "perplexity")
"""Dev metrics that fall as a model improves; of the others more is better."""


class RunDir:
    """Paths inside one run directory (or bundle)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: str | Path, verified: bool = True) -> "RunDir":
        """Return an existing run, bundle or CTranslate2 export.

        Args:
            path: the folder.
            verified: whether to compare its files with checksums.json; weights are left to those who load them.

        Raises:
            CheckpointError: when it is none, or a file is missing or changed.
        """
        run = cls(path)
        if not run.config.is_file():
            raise CheckpointError(f"{path}: not a run directory or bundle (it has no config.yaml)")
        if verified:
            listed = read_meta(run.path, CHECKSUMS)["sha256"]
            left = [name for name in (WEIGHTS, CT2_WEIGHTS) if (run.path / name).exists()]
            verify(run.path, *(name for name in listed if name not in left), listing=CHECKSUMS)
        return run

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checksums(self) -> Path:
        return self.path / CHECKSUMS

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
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """In the folder that W&B itself makes for its files."""
        return self.path / "wandb" / "run_id.txt"

    @property
    def log(self) -> Path:
        return self.path / "train.log"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def lock(self) -> Path:
        """Beside the run directory, whose own name may change while it is held."""
        real = Path(os.path.realpath(self.path))
        return real.with_name(f".{real.name}.lock")

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

    @property
    def evaluations(self) -> Path:
        return self.path / "eval"

    def evaluation(self, name: str) -> Path:
        return self.evaluations / name

    def checkpoint_folders(self) -> list[Path]:
        """All folders that are called as checkpoints are, whole or damaged, by ascending step."""
        found = [path for path in self.checkpoints.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
        return sorted(found, key=lambda path: int(path.name[5:]))

    def steps(self) -> list[int]:
        """Steps that have a checkpoint whose meta.json is whole, ascending."""
        return list(self._metas())

    def regular_steps(self) -> list[int]:
        """`steps` without those that were only saved because the run was interrupted."""
        return [step for step, meta in self._metas().items() if not meta["is_temporary"]]

    def best_steps(self, metric: str) -> list[int]:
        """Steps whose checkpoint knows this dev metric, the best first, the earlier one when equal."""
        values = {step: meta["metrics"].get(metric) for step, meta in self._metas().items()}
        sign = 1 if metric in LOWER_IS_BETTER else -1
        return sorted(
            (step for step, value in values.items() if value is not None), key=lambda s: (sign * values[s], s)
        )

    def _metas(self) -> dict[int, dict[str, Any]]:
        """meta.json of each step that has a whole one."""
        metas = {}
        for folder in self.checkpoint_folders():
            with contextlib.suppress(CheckpointError):
                metas[int(folder.name[5:])] = read_meta(folder)
        return metas


def references_name(number: int) -> str:
    """The file of a test set's references: the first is number 0."""
    return f"references.{number + 1}.txt" if number else "references.txt"


def write_config(run: RunDir, text: str) -> None:
    """Write config.yaml of a run, and checksums.json with it and the tokenizer, if there is one.

    The checksums are written first, those of the new and the present config.yaml side by side: a process killed between
    the two writes leaves a config.yaml that is listed.
    """
    listed = file_hashes(run.path, (run.config, *run.tokenizer.glob("*.model")))
    new = hashlib.sha256(text.encode()).hexdigest()
    present = listed.get(run.config.name, new)
    listed[run.config.name] = new if new == present else f"{present} {new}"
    write_checksums(run.path, listed)
    write_text(run.config, text)
