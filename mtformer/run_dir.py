"""Paths of a run directory. File names inside it are defined only here.

A bundle contains only config.yaml, tokenizer/, model.safetensors, checksums.json, README.md and, from data_report.json,
the share of lines with several sentences and the style of the text. checksums.json of an export (bundle or other
format) lists all files of the folder except README.md, which users complete.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError
from mtformer.files import (
    CHECKSUMS,
    MADE_FROM,
    META,
    file_hashes,
    read_meta,
    require_saved_config,
    require_text,
    unchanged,
    verify,
    write_checksums,
    write_text,
)
from mtformer.formatting import printable

WEIGHTS = "model.safetensors"
"""Weights of a checkpoint or bundle."""
TRAINER_STATE = "trainer.pt"
"""State of the optimizer and of the training loop."""
CT2_WEIGHTS = "model.bin"
"""Weights of a CTranslate2 export."""
CT2_VOCABULARY_MAP = "vmap.txt"
"""Vocabulary map of a CTranslate2 export."""
MODEL_CARD = "README.md"
"""Model card of an export."""
FINETUNE_CONFIG = "finetune.yaml"
"""Config for fine-tuning in an imported bundle."""
SWEEP = "sweep.json"
"""File with the runs of a sweep, their commands and exit codes, next to the runs and their logs (RUN.log)."""
SWEEP_LOCK = ".sweep.lock"
"""Lock of a sweep, next to its runs."""
SWEEP_STOP = ".sweep.stop"
"""File whose presence ends a sweep, next to its runs."""
STEP_FOLDER = re.compile(r"step-\d{8,}")
"""Name of the folder of a checkpoint."""
SCORES = "scores.json"
"""Score card of an evaluation."""
SOURCES = "sources.txt"
"""Source sentences of an evaluation."""
HYPOTHESES = "hypotheses.txt"
"""Translations of an evaluation."""
MAX_KIND = 40
"""Number of characters of the type of a foreign model that an error shows."""
MULTI_SENTENCE_SHARE = "multi_sentence_share"
"""Key in data_report.json: share of source lines with several sentences."""
TEXT_STYLE = "text_style"
"""Key in data_report.json: style of the training text, see `mtformer.text.style`."""


class RunDir:
    """Paths inside one run directory (or bundle)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"  # the resolved config, sufficient to reproduce the run
        self.checksums = self.path / CHECKSUMS  # SHA-256 of config.yaml and the tokenizer
        self.tokenizer = self.path / "tokenizer"  # joint.model, or src.model and tgt.model; normalization.tsv
        self.data_report = self.path / "data_report.json"  # numbers of pairs read, kept and removed, by reason
        self.corpus = self.path / "corpus"  # text of an adaptation, see `experiment.adapt`
        self.metrics = self.path / "metrics.jsonl"  # one object per log line and validation, append-only
        self.samples = self.path / "samples.jsonl"  # translations of a few dev sentences, one object per validation
        self.report = self.path / "report.html"
        self.log = self.path / "train.log"  # the log that is shown on the terminal
        self.state = self.path / "state.json"  # running, or how the run ended
        self.tensorboard = self.path / "tensorboard"
        self.trackers = self.path / "trackers"  # NAME.json: what a tracker already has of the run
        # step-00001000/: model.safetensors, trainer.pt, meta.json; damaged-step-.../: skipped on resuming, never read
        self.checkpoints = self.path / "checkpoints"
        self.averaged = self.checkpoints / "averaged"  # model.safetensors, meta.json
        self.exam = self.path / "exam.json"  # card written by `mtformer exam --json`, for the model card
        self.confidence = self.path / "confidence.json"  # fitted on dev data, see `decoding.confidence`
        self.evaluations = self.path / "eval"  # NAME/: scores.json, {sources,references,hypotheses}.txt
        self.bundle_weights = self.path / WEIGHTS

    @classmethod
    def open(cls, path: str | Path, verified: bool = True) -> "RunDir":
        """Return an existing run, bundle or CTranslate2 export.

        If `verified`, files are compared with checksums.json, except weights, which are verified when they are loaded.
        Raise CheckpointError if the folder is none of these, version 0.1 wrote it, or a file is missing or changed.
        """
        require_text(path)
        run = cls(path)
        if not os.path.isfile(run.config):
            raise CheckpointError(f"{path}: {_what_is_no_run(run.path)}")
        run.require_version()
        if verified:
            listed = read_meta(run.path, CHECKSUMS)["sha256"]
            # The confidence may be fitted again. It and the weights are checked when they are loaded.
            unchecked = {run.confidence.name}
            unchecked.update(name for name in (WEIGHTS, CT2_WEIGHTS) if (run.path / name).exists())
            names = [name for name in listed if name not in unchecked]
            verify(run.path, *names, listing=CHECKSUMS)
        return run

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: str | Path) -> Iterator["RunDir"]:
        """Yield the result of `open`; raise CheckpointError if a file that is read inside the context changes there.

        The config and the tokenizer that are loaded are then those that were verified.
        """
        require_text(path)
        run = cls(path)
        with unchanged(run.config, *run.tokenizer.glob("*.model"), run.data_report):
            yield cls.open(path)

    def require_version(self) -> None:
        """Raise CheckpointError if version 0.1 wrote the run, bundle or export."""
        has_weights = self.bundle_weights.exists() or (self.path / CT2_WEIGHTS).exists()
        if has_weights or any(self.checkpoints.glob(f"*/{META}")):
            require_saved_config(self.config)

    @property
    def lock(self) -> Path:
        """Lock file next to the run directory, which may be renamed while the lock is held."""
        real = Path(os.path.realpath(self.path))
        return real.with_name(f".{real.name}.lock")

    @property
    def is_bundle(self) -> bool:
        """Return True for a bundle, which has weights in the top folder."""
        return self.bundle_weights.is_file()

    @property
    def is_adaptation(self) -> bool:
        """Return True for a run that `mtformer adapt` started, which has the text of the adaptation."""
        return (self.corpus / MADE_FROM).is_file()

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.checkpoints / f"step-{step:08d}"

    def evaluation(self, name: str) -> Path:
        """Return the folder with the scores and translations of a test set."""
        return self.evaluations / name

    def checkpoint_folders(self) -> list[Path]:
        """Return all folders with a checkpoint name, intact or damaged, by step."""
        folders = [path for path in self.checkpoints.glob("step-*") if STEP_FOLDER.fullmatch(path.name)]
        return sorted(folders, key=_step_of)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints with an intact meta.json, in ascending order."""
        return list(self._metas())

    def regular_steps(self) -> list[int]:
        """Return the steps of all checkpoints except temporary ones, which interrupted runs save."""
        return [step for step, meta in self._metas().items() if not meta["is_temporary"]]

    def best_steps(self, metric: str) -> list[int]:
        """Return the steps of all checkpoints that have this dev metric, best first; of equal ones by dev loss.

        Checkpoints that were validated on other dev data than the last one are left out.
        """
        metas = {step: meta for step, meta in self._metas().items() if metric in meta["metrics"]}
        if not metas:
            return []
        last_meta = metas[max(metas)]
        dev_data = last_meta["made_with"].get("dev data")
        metrics: dict[int, dict[str, float]] = {}
        for step, meta in metas.items():
            if meta["made_with"].get("dev data") == dev_data:
                metrics[step] = meta["metrics"]
        sign = 1 if lower_is_better(metric) else -1

        def rank(step: int) -> tuple[float, float, int]:
            dev_loss = metrics[step].get("loss", 0.0)
            return sign * metrics[step][metric], dev_loss, step

        return sorted(metrics, key=rank)

    def _metas(self) -> dict[int, dict[str, Any]]:
        """Return the contents of each intact meta.json by step, in ascending order."""
        metas = {}
        for folder in self.checkpoint_folders():
            with contextlib.suppress(CheckpointError):
                metas[_step_of(folder)] = read_meta(folder)
        return metas


def _step_of(folder: Path) -> int:
    """Return the step of a checkpoint folder."""
    return int(folder.name.removeprefix("step-"))


def lower_is_better(metric: str) -> bool:
    """Return True for a dev metric such as `loss` or `loss NAME` for which lower is better."""
    return metric.partition(" ")[0] in ("loss", "perplexity")


def _what_is_no_run(folder: Path) -> str:
    """Describe a folder without config.yaml: the model of another program, or something else, and what to do."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if isinstance(settings, dict) and settings.get("model_type") == "marian":
        return f"a Marian model from Hugging Face, not a run; convert it first: mtformer import {folder} RUN"
    if isinstance(settings, dict) and "model_type" in settings:
        kind = printable(str(settings["model_type"]), MAX_KIND)
        return f"a Hugging Face model of type {kind}, not a run; mtformer import converts only Marian models (OPUS-MT)"
    has_marian_files = folder.is_dir() and any(folder.glob("*.npz"))
    if has_marian_files:
        return (
            "a model in Marian's own format (.npz), not a run; download the same model from Hugging Face, and convert "
            "it with mtformer import"
        )
    return "not a run directory or bundle (it has no config.yaml); check the path"


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest unique suffix of each path; paths given more than once are numbered."""
    parts_of_paths = [Path(os.path.realpath(path)).parts for path in paths]
    num_parts = _num_distinguishing_parts(parts_of_paths)
    names = [_last_parts(parts, num_parts) for parts in parts_of_paths]
    return [f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1)]


def _last_parts(parts: tuple[str, ...], num_parts: int) -> str:
    """Return the last parts of a path; the first part of an absolute path is `/`."""
    name = "/".join(part.strip("/") for part in parts[-num_parts:])
    return name or "/"


def _num_distinguishing_parts(paths: Sequence[tuple[str, ...]]) -> int:
    """Return the smallest number of last parts by which the paths differ; 1 if some paths are equal."""
    longest = max(map(len, paths))
    for num_parts in range(1, longest + 1):
        suffixes = {parts[-num_parts:] for parts in paths}
        if len(suffixes) == len(paths):
            return num_parts
    return 1


def references_name(number: int) -> str:
    """Return the file name of a test set's references; the first set is number 0."""
    return f"references.{number + 1}.txt" if number else "references.txt"


def line_scores_name(metric: str) -> str:
    """Return the file name of the scores of a test set's lines by an external metric."""
    return f"scores.{metric}.txt"


def write_config(run: RunDir, text: str) -> None:
    """Write config.yaml of a run, and checksums.json for it and the tokenizer, if the run has one.

    checksums.json is written first, and lists the new and the current config.yaml, so a kill leaves a valid run.
    """
    hashes = file_hashes(run.path, (run.config, *run.tokenizer.glob("*")))
    new_hash = hashlib.sha256(text.encode()).hexdigest()
    present_hash = hashes.get(run.config.name, new_hash)
    hashes[run.config.name] = new_hash if new_hash == present_hash else f"{present_hash} {new_hash}"
    write_checksums(run.path, hashes)
    write_text(run.config, text)
