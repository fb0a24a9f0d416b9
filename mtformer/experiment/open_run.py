"""Open a run directory that is new, contains a run or something else, or was left incomplete by a killed process.

`--overwrite` renames the old run to `.NAME.TIME.replaced` in the same folder, creates the new run, and deletes the old
one once the new one is prepared. If the process is killed in between, the next start restores or reports the old run.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Literal

from mtformer.config.loading import dump_config, load_config
from mtformer.config.schema import Config
from mtformer.errors import CheckpointError, log
from mtformer.experiment.resume import compare_configs
from mtformer.files import LEFTOVER, clear_leftovers, delete_folder, move_folder
from mtformer.run_dir import RunDir, write_config

Resume = bool | Literal["auto"]
"""auto: resume if a run exists, else start a new one."""
EXPORTS = ("argos.argosmodel", "bundle", "ctranslate2", "huggingface")
"""Names of exports in a run directory."""


@contextlib.contextmanager
def open_run(run: RunDir, config: Config, resume: Resume, overwrite: bool) -> Iterator[bool]:
    """Open the run directory; the caller prepares the run within the context, and all changes are undone if this fails.

    Call it while holding `lock_run`, so that no other process overwrites the run at the same time.

    Args:
        run: run directory.
        config: config of the run, which is written to it.
        resume: resume the run; `auto`: only if it exists.
        overwrite: replace an existing run, unless it is resumed.

    Yield True if an existing run is resumed. Raise CheckpointError if the run exists and neither flag is given, it does
    not exist and `resume` is True, it cannot be resumed with this config, or the directory contains something other
    than a run, which is never modified.
    """
    path = Path(os.path.realpath(run.path))  # renaming a folder must not replace a symbolic link
    _restore_replaced(path)
    is_free = _is_free(path)
    if not is_free:
        _check_is_run(run)

    if is_free and resume is True:
        raise CheckpointError(f"{run.path}: nothing to resume (no config.yaml); leave out --resume to start a run")
    if resume and not is_free:
        with _resumed(run, config):
            yield True
        return

    if not is_free and not overwrite:
        raise CheckpointError(
            f"{run.path}: already exists; continue it with --resume, delete it and start over with --overwrite, or "
            "choose another folder with --run-dir"
        )
    if not is_free:
        _check_may_be_deleted(run, path)
    with _recreated(path):
        write_config(run, dump_config(config))
        yield False
        write_config(run, dump_config(config))  # now includes the tokenizer's checksum


@contextlib.contextmanager
def _resumed(run: RunDir, config: Config) -> Iterator[None]:
    """Compare the config with that of the run, and write it after the context."""
    RunDir.open(run.path)
    compare_configs(run, load_config(run.config).config, config)
    yield
    RunDir.open(run.path)  # a file that was damaged in the meantime must not get a new checksum
    write_config(run, dump_config(config))


@contextlib.contextmanager
def _recreated(path: Path) -> Iterator[None]:
    """Create the folder, or replace the run in it; delete the old run after the context, or undo all on an error."""
    replaced = None
    if not _is_free(path):
        new_name = f".{path.name}.{time.time_ns()}.replaced"
        replaced = path.with_name(new_name)
        move_folder(path, replaced)
    existed = path.is_dir()
    earlier_entries = list(path.iterdir()) if existed else []  # such as the corpus of `distill`, which takes long
    path.mkdir(parents=True, exist_ok=True)

    try:
        yield
    except BaseException:
        _delete_entries(set(path.iterdir()).difference(earlier_entries))
        if not existed:
            path.rmdir()
        if replaced is not None:
            move_folder(replaced, path)
        raise

    if replaced is not None:
        delete_folder(replaced)


def _delete_entries(paths: Iterable[Path]) -> None:
    """Delete files and folders."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_free(path: Path) -> bool:
    """Return True if the folder does not exist, or has only files that a killed process wrote before config.yaml."""
    if not path.is_dir():
        return not path.exists()
    return not RunDir(path).config.exists() and _is_just_started(path)


def _is_just_started(path: Path) -> bool:
    """Return True if the folder contains only files that a run writes before its tokenizer."""
    run = RunDir(path)
    first_entries = (run.checksums, run.config, run.corpus, run.log, run.state)
    first_names = {entry.name for entry in first_entries}
    return not _unknown_names(path, first_names)


def _unknown_names(path: Path, known_names: Set[str]) -> list[str]:
    """Return the names of the entries of a folder that are neither known nor left by a killed process, sorted."""
    unknown_names: list[str] = []
    for entry in path.iterdir():
        is_leftover = LEFTOVER.fullmatch(entry.name) is not None
        if entry.name not in known_names and not is_leftover:
            unknown_names.append(entry.name)
    return sorted(unknown_names)


def _check_is_run(run: RunDir) -> None:
    """Raise CheckpointError if the folder contains a bundle, or anything else that is not a run."""
    if run.is_bundle:
        raise CheckpointError(f"{run.path}: is a bundle, which cannot be trained; choose another folder with --run-dir")
    has_results = any(path.exists() for path in (run.tokenizer, run.data_report, run.checkpoints))
    is_run = run.config.is_file() and (has_results or _is_just_started(run.path))
    if not is_run:
        raise CheckpointError(f"{run.path}: exists but is not a run; choose another folder with --run-dir")


def _check_may_be_deleted(run: RunDir, path: Path) -> None:
    """Raise CheckpointError if the folder has files that no command writes there, or is the current folder."""
    if Path.cwd().is_relative_to(path):
        raise CheckpointError(f"{run.path}: is the current folder; change to another folder for --overwrite")

    names_of_run = {entry.name for entry in vars(run).values()}
    unknown_names = _unknown_names(path, names_of_run.union(EXPORTS))
    if unknown_names:
        raise CheckpointError(
            f"{run.path}: --overwrite would delete {', '.join(unknown_names[:3])}, which is not part of a run; move it "
            "away, or choose another folder with --run-dir"
        )


def _restore_replaced(path: Path) -> None:
    """Undo or complete a killed `--overwrite`, or report the old run that it left in the parent folder."""
    clear_leftovers(path.parent)
    for old in _replaced_folders(path):
        if _is_free(path):
            shutil.rmtree(path, ignore_errors=True)
            move_folder(old, path)
            log.warning("%s: restored, because --overwrite was killed before the new run began", path)
        else:
            log.warning("%s: old run left by a killed --overwrite; delete it if you do not need it", old)


def _replaced_folders(path: Path) -> list[Path]:
    """Return the old runs that `--overwrite` renamed, latest first."""
    if not path.parent.is_dir():
        return []
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.replaced")
    folders_by_time: dict[int, Path] = {}
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match is not None:
            folders_by_time[int(match[1])] = entry
    latest_first = sorted(folders_by_time, reverse=True)
    return [folders_by_time[time_ns] for time_ns in latest_first]
