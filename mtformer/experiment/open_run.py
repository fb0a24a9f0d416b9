"""Open a run directory that is new, contains a run or something else, or was left incomplete by a killed process.

`--overwrite` renames the old run to `.NAME.TIME.replaced` in the same folder, creates the new run, and deletes the old
one once the new one is prepared. If the process is killed in between, the next start restores or reports the old run.
"""

import contextlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from mtformer.config.fields import key_metadata
from mtformer.config.loading import LoadedConfig, config_diff, dump_config, load_config
from mtformer.config.schema import Config
from mtformer.config.section import key_of
from mtformer.config.yaml_text import DEFAULT
from mtformer.errors import CheckpointError, log
from mtformer.evaluation.scores import for_language
from mtformer.experiment.prepare import Prepared
from mtformer.files import LEFTOVER, clear_leftovers, delete_folder
from mtformer.run_dir import RunDir, write_config
from mtformer.version import __version__

Resume = bool | Literal["auto"]
"""auto: resume if a run exists, else start a new one."""
TO_THE_END = ("cosine", "linear", "warmup_stable_decay")  # schedules that depend on `max_steps`
EXPORTS = ("argos.argosmodel", "bundle", "ctranslate2", "huggingface")  # names of exports in a run directory
INEXACT = " (the run now differs from an uninterrupted one)"


@contextlib.contextmanager
def open_run(run: RunDir, config: Config, resume: Resume, overwrite: bool) -> Iterator[bool]:
    """Open the run directory; the caller prepares the run within the context, and all changes are undone if this fails.

    Call it while holding `lock_run`, so that no other process overwrites the run at the same time.

    Yield True if an existing run is resumed. Raise CheckpointError if the run exists and neither flag is given, it
    cannot be resumed with this config, or the directory contains something other than a run, which is never modified.
    """
    path = Path(os.path.realpath(run.path))  # renaming a folder must not replace a symbolic link
    _restore_replaced(path)
    is_free = _is_free(path)
    if not is_free:
        _check_is_run(run)
    if resume and not (is_free and resume == "auto"):
        if is_free:
            raise CheckpointError(f"{run.path}: nothing to resume (no config.yaml); leave out --resume to start a run")
        RunDir.open(run.path)
        compare_configs(run, load_config(run.config).config, config)
        yield True
        RunDir.open(run.path)  # a file that was damaged in the meantime must not get a new checksum
        write_config(run, dump_config(config))
        return
    if not is_free and not overwrite:
        what = "already exists; continue it with --resume, delete it and start over with --overwrite"
        raise CheckpointError(f"{run.path}: {what}, or choose another folder with --run-dir")
    if not is_free:
        _check_may_be_deleted(run, path)
    with _recreated(path):
        write_config(run, dump_config(config))
        yield False
        write_config(run, dump_config(config))  # now includes the tokenizer's checksum


@contextlib.contextmanager
def _recreated(path: Path) -> Iterator[None]:
    """Create the folder, or replace the run in it; delete the old run after the context, or undo all on an error."""
    replaced = None
    if not _is_free(path):
        replaced = path.rename(path.with_name(f".{path.name}.{time.time_ns()}.replaced"))
    existed = path.is_dir()
    earlier = list(path.iterdir()) if existed else []  # such as the corpus of `distill`, which takes long to make
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for entry in {*path.iterdir()}.difference(earlier):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not existed:
            path.rmdir()
        if replaced is not None:
            replaced.rename(path)
        raise
    if replaced is not None:
        delete_folder(replaced)


def _is_free(path: Path) -> bool:
    """Return True if the folder does not exist, or has only files that a killed process wrote before config.yaml."""
    if not path.is_dir():
        return not path.exists()
    return not RunDir(path).config.exists() and _is_just_started(path)


def _is_just_started(path: Path) -> bool:
    """Return True if the folder contains only files that a run writes before its tokenizer."""
    run = RunDir(path)
    files = (run.checksums.name, run.config.name, run.corpus.name, run.log.name, run.state.name)
    return all(entry.name in files or LEFTOVER.fullmatch(entry.name) for entry in path.iterdir())


def _check_is_run(run: RunDir) -> None:
    """Raise CheckpointError if the folder contains a bundle, or anything else that is not a run."""
    if run.is_bundle:
        raise CheckpointError(f"{run.path}: is a bundle, which cannot be trained; choose another folder with --run-dir")
    is_begun = any(path.exists() for path in (run.tokenizer, run.data_report, run.checkpoints))
    if not run.config.is_file() or not (is_begun or _is_just_started(run.path)):
        raise CheckpointError(f"{run.path}: exists but is not a run; choose another folder with --run-dir")


def _check_may_be_deleted(run: RunDir, path: Path) -> None:
    """Raise CheckpointError if the folder has files that no command writes there, or is the current folder."""
    if Path.cwd().is_relative_to(path):
        raise CheckpointError(f"{run.path}: is the current folder; change to another folder for --overwrite")
    known = {*EXPORTS, *(one.name for one in vars(run).values())}
    others = sorted(one.name for one in path.iterdir() if one.name not in known and not LEFTOVER.fullmatch(one.name))
    if others:
        what = f"--overwrite would delete {', '.join(others[:3])}, which is not part of a run"
        raise CheckpointError(f"{run.path}: {what}; move it away, or choose another folder with --run-dir")


def _restore_replaced(path: Path) -> None:
    """Undo or complete a killed `--overwrite`, or report the old run that it left in the parent folder."""
    clear_leftovers(path.parent)
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.replaced")
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    found = [match for entry in entries if (match := pattern.fullmatch(entry.name))]
    for match in sorted(found, key=lambda match: -int(match[1])):  # latest first, because that one is restored
        old = path.parent / match[0]
        if _is_free(path):
            shutil.rmtree(path, ignore_errors=True)
            old.rename(path)
            log.warning("%s: restored, because --overwrite was killed before the new run began", path)
        else:
            log.warning("%s: old run left by a killed --overwrite; delete it if you do not need it", old)


def with_saved_defaults(loaded: LoadedConfig, run: RunDir) -> Config:
    """Return the config with which a run is resumed: keys with a new default keep the value of the run.

    This applies to keys with `Key.keeps_saved` that the config does not set.
    """
    config = loaded.config
    if not run.config.is_file():
        return config
    saved = dict(load_config(RunDir.open(run.path).config).config)
    for section_name, section in config:
        kept = {
            name: getattr(saved[section_name], name)
            for name in type(section).model_fields
            if key_of(type(section), name).keeps_saved and loaded.origins[f"{section_name}.{name}"] == DEFAULT
        }
        config = config.model_copy(update={section_name: section.model_copy(update=kept)})
    return config


def compare_configs(run: RunDir, old: Config, new: Config) -> None:
    """Log every difference as old -> new; raise CheckpointError for a difference that prevents resuming."""
    for key, before, after in config_diff(old, new):
        on_resume = key_metadata(key).on_resume
        if on_resume == "refuse":
            what = f"cannot resume with {key} {before!r} -> {after!r}, since the saved weights depend on it"
            raise CheckpointError(f"{run.path}: {what}; restore the old value, or start over with --overwrite")
        changes_schedule = key in ("training.max_minutes", "training.max_epochs")
        changes_schedule |= key == "training.max_steps" and new.training.schedule in TO_THE_END
        is_harmless = on_resume == "same" and not changes_schedule
        log.warning("resuming with %s %r -> %r%s", key, before, after, "" if is_harmless else INEXACT)


def describe_environment(
    config: Config, prepared: Prepared, device: torch.device, precision: str, num_processes: int
) -> dict[str, Any]:
    """Return what affects the results of a run besides its config, such as data, tokenizer, device and versions.

    The keys are the names used in messages. Checkpoints contain the returned dict.
    """
    tokenizers = prepared.tokenizers
    dev = [text for one in prepared.dev for text in (*one.names, one.corpus.store.fingerprint)]
    bleu = {one.tgt_lang: for_language(config.evaluation, one.tgt_lang).bleu_tokenizer for one in prepared.dev}
    # Scores with other settings are not compared, like those on other dev data.
    scoring = [bleu, config.evaluation.lowercase, config.decoding.for_validation().output_settings()]
    device_text = f"cpu, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        device_text = f"cuda, {torch.cuda.get_device_name(device)}"
    return {
        "training data": " ".join(corpus.store.fingerprint for corpus in prepared.corpora),
        "dev data": " ".join([*dev, f"{zlib.crc32(json.dumps(scoring).encode()):08x}"]) if dev else None,
        "tokenizer": " ".join(dict.fromkeys((tokenizers.src.sha256, tokenizers.tgt.sha256))),
        "processes": num_processes,
        "device": device_text,
        "precision": precision,
        "dev BLEU tokenizers": bleu,
        "mtformer": __version__,
        "torch": str(torch.__version__),
        "sentencepiece": version("sentencepiece"),
    }


def compare_environments(run: RunDir, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Log differences from the environment that the checkpoint records; raise CheckpointError for other tokenizers."""
    for name, after in new.items():
        before = old.get(name)
        if before == after:
            continue
        if name == "tokenizer":
            what = f"differs from the tokenizer of the saved weights (SHA-256 {before} -> {after})"
            raise CheckpointError(f"{run.tokenizer}: {what}; restore that one, or start over with --overwrite")
        log.warning("resuming with %s %s -> %s%s", name, before, after, INEXACT)
