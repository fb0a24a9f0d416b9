"""Paths of a run directory; the only place that names its files.

    RUN/config.yaml                       the resolved config; alone it reproduces the run
    RUN/tokenizer/{joint,src,tgt}.model   SentencePiece
    RUN/checksums.json                    SHA-256 of config.yaml and the tokenizer
    RUN/data_report.json                  numbers of pairs read, kept and dropped, by reason
    RUN/metrics.jsonl                     one object per log line and validation, append only
    RUN/samples.jsonl                     translations of a few dev sentences, one object per validation
    RUN/train.log                         the log of the terminal
    RUN/tensorboard/, RUN/wandb/          with training.tensorboard or training.wandb: the files of these programs
    RUN/state.json                        state of the training: running, or how it ended
    RUN/checkpoints/step-00001000/        model.safetensors, trainer.pt, meta.json
    RUN/checkpoints/damaged-step-.../     a damaged checkpoint that resuming skipped; never read
    RUN/checkpoints/averaged/             model.safetensors, meta.json
    RUN/eval/NAME/                        scores.json, {sources,references,hypotheses}.txt
    RUN/report.html                       HTML report

A sweep, in the folder of its runs:

    SWEEP/sweep.json                      its runs, the command of each, and how that ended
    SWEEP/RUN.log                         output of that command

A bundle is the same folder with only config.yaml, tokenizer/, model.safetensors, checksums.json and, of
data_report.json, the share of lines with several sentences. The checksums.json of an export, bundle or other, lists all
files of the folder.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError
from mtformer.files import CHECKSUMS, file_hashes, read_meta, require_text, verify, write_checksums, write_text

WEIGHTS = "model.safetensors"
TRAINER_STATE = "trainer.pt"
CT2_WEIGHTS = "model.bin"
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
SCORES = "scores.json"
SOURCES, HYPOTHESES = "sources.txt", "hypotheses.txt"
MULTI_SENTENCE_SHARE = "multi_sentence_share"
"""Key of data_report.json: the share of the source lines that have several sentences."""
LOWER_IS_BETTER = ("loss", "perplexity")
"""Dev metrics for which lower is better."""


class RunDir:
    """Paths inside one run directory (or bundle)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.checksums = self.path / CHECKSUMS
        self.tokenizer = self.path / "tokenizer"
        self.data_report = self.path / "data_report.json"
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.report = self.path / "report.html"
        self.log = self.path / "train.log"
        self.state = self.path / "state.json"
        self.tensorboard = self.path / "tensorboard"
        self.wandb_id = self.path / "wandb" / "run_id.txt"
        self.checkpoints = self.path / "checkpoints"
        self.averaged = self.checkpoints / "averaged"
        self.evaluations = self.path / "eval"
        self.bundle_weights = self.path / WEIGHTS

    @classmethod
    def open(cls, path: str | Path, verified: bool = True) -> "RunDir":
        """Return an existing run, bundle or CTranslate2 export.

        Args:
            path: the folder.
            verified: compare its files with checksums.json, except weights, which are verified when loaded.

        Raises:
            CheckpointError: if it is neither, or a file is missing or changed.
        """
        require_text(path)
        run = cls(path)
        if not os.path.isfile(run.config):
            raise CheckpointError(f"{path}: not a run directory or bundle (it has no config.yaml)")
        if verified:
            listed = read_meta(run.path, CHECKSUMS)["sha256"]
            left = [name for name in (WEIGHTS, CT2_WEIGHTS) if (run.path / name).exists()]
            verify(run.path, *(name for name in listed if name not in left), listing=CHECKSUMS)
        return run

    @property
    def lock(self) -> Path:
        """Lock file beside the run directory, whose own name may change while the lock is held."""
        real = Path(os.path.realpath(self.path))
        return real.with_name(f".{real.name}.lock")

    @property
    def is_bundle(self) -> bool:
        return self.bundle_weights.is_file()

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def evaluation(self, name: str) -> Path:
        return self.evaluations / name

    def checkpoint_folders(self) -> list[Path]:
        """Return all folders named as checkpoints, intact or damaged, by step."""
        found = [path for path in self.checkpoints.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
        return sorted(found, key=lambda path: int(path.name[5:]))

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints with an intact meta.json, ascending."""
        return list(self._metas())

    def regular_steps(self) -> list[int]:
        """Return `steps` without the temporary checkpoints of interrupted runs."""
        return [step for step, meta in self._metas().items() if not meta["is_temporary"]]

    def best_steps(self, metric: str) -> list[int]:
        """Return the steps of the checkpoints with this dev metric, best first, the earlier one when equal."""
        values = {step: meta["metrics"].get(metric) for step, meta in self._metas().items()}
        sign = 1 if metric in LOWER_IS_BETTER else -1
        return sorted(
            (step for step, value in values.items() if value is not None), key=lambda s: (sign * values[s], s)
        )

    def _metas(self) -> dict[int, dict[str, Any]]:
        """Return the intact meta.json files by step."""
        metas = {}
        for folder in self.checkpoint_folders():
            with contextlib.suppress(CheckpointError):
                metas[int(folder.name[5:])] = read_meta(folder)
        return metas


def references_name(number: int) -> str:
    """Return the file name of a test set's references; the first set is number 0."""
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
