"""Where everything of one run lies, and how a file is written: whole or not at all.

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

What is being written stands beside its place as `.NAME@HOST.PID.tmp`, and what it replaces for a moment as
`.NAME@HOST.PID.old`. A process that is killed leaves them; the next one that writes there clears them away, or puts the
old one back when its place is empty.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError

WEIGHTS = "model.safetensors"
TRAINER_STATE = "trainer.pt"
CT2_WEIGHTS = "model.bin"
META = "meta.json"
CHECKSUMS = "checksums.json"
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
SCORES = "scores.json"
SOURCES, HYPOTHESES = "sources.txt", "hypotheses.txt"
LOWER_IS_BETTER = ("loss", "perplexity")
"""Dev metrics that fall as a model improves; of the others more is better."""
LEFTOVER = re.compile(r"\.(?P<name>.+)@(?P<host>[^@]*)\.(?P<pid>\d{1,9})\.(?P<kind>tmp|old)", re.DOTALL)
FOREIGN_SECONDS = 24 * 3600
"""Age at which temporary files of another machine, whose processes cannot be asked for, are deleted."""


class DamagedError(CheckpointError):
    """A file of a checkpoint, run or export that is missing, or not as it was saved.

    Args:
        path: the file.
        what: what is wrong with it.
        listing: the name of the file that lists its checksum: `META` in a checkpoint, else `CHECKSUMS`.
    """

    def __init__(self, path: Path, what: str, listing: str = META) -> None:
        remedies = {
            CHECKSUMS: "restore it from a copy, export again, or train again with --overwrite",
            "config.yaml": "restore it from a copy or export again; pass other settings on the command line",
        }
        remedy = remedies.get(path.name, "restore it from a copy, or export again")
        if listing == META:
            remedy = f"use another checkpoint, or move {path.parent} away"
        super().__init__(f"{path}: {what}; {remedy}")
        self.what = f"{path.name} is {what}"


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


def write_meta(folder: Path, **values: Any) -> None:
    """Writes meta.json: the values, SHA-256 of each file of the folder, and of all this."""
    text = _with_checksum({**values, "sha256": _sha256(folder, folder.iterdir())})
    (folder / META).write_text(text, encoding="utf-8")


def write_checksums(folder: Path) -> None:
    """Write checksums.json of a bundle or another export: SHA-256 of each file of the folder, and of all this."""
    paths = (path for path in folder.rglob("*") if path.name != CHECKSUMS)
    (folder / CHECKSUMS).write_text(_with_checksum({"sha256": _sha256(folder, paths)}), encoding="utf-8")


def write_config(run: RunDir, text: str) -> None:
    """Write config.yaml of a run, and checksums.json with it and the tokenizer, if there is one.

    The checksums are written first, those of the new and the present config.yaml side by side: a process killed between
    the two writes leaves a config.yaml that is listed.
    """
    listed = _sha256(run.path, (run.config, *run.tokenizer.glob("*.model")))
    new = hashlib.sha256(text.encode()).hexdigest()
    present = listed.get(run.config.name, new)
    listed[run.config.name] = new if new == present else f"{present} {new}"
    write_text(run.checksums, _with_checksum({"sha256": listed}))
    write_text(run.config, text)


def read_meta(folder: Path, listing: str = META) -> dict[str, Any]:
    """meta.json of a checkpoint: step, metrics, sha256 and more; raises DamagedError when it is not as it was saved.

    With `CHECKSUMS` as `listing`, read checksums.json of a run or export, which has only `sha256`.
    """
    path = folder / listing
    try:
        meta: dict[str, Any] = json.loads(_read(path, listing))
        is_whole = meta.pop("checksum", None) == _checksum(meta)
    except (ValueError, AttributeError, TypeError) as error:  # no JSON, or no object
        raise DamagedError(path, f"not readable ({error})", listing) from error
    if not is_whole:
        raise DamagedError(path, "changed since it was saved", listing)
    return meta


def verify(folder: Path, *names: str, listing: str = META) -> dict[str, Any]:
    """meta.json of a checkpoint (or what `listing` names), after these of its files were compared with it.

    Raises:
        DamagedError: when one is missing, cut short or changed.
        CheckpointError: when one cannot be read for another reason.
    """
    meta = read_meta(folder, listing)
    for name in names:
        path = folder / name
        with _told(path, listing):
            actual = file_sha256(path)
        if actual not in meta["sha256"].get(name, "").split():
            raise DamagedError(path, "cut short or changed since it was saved", listing)
    return meta


def _sha256(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the hash of each of these files by its path in the folder."""
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in sorted(paths) if path.is_file()}


def _read(path: Path, listing: str) -> bytes:
    with _told(path, listing):
        return path.read_bytes()


@contextmanager
def _told(path: Path, listing: str) -> Iterator[None]:
    """Turns what the system says about a file of a checkpoint, run or export into our errors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedError(path, "missing", listing) from error
    except OSError as error:
        instead = f", or move {path.parent} away to do without it" if listing == META else ""
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); mend that{instead}") from error


def _with_checksum(meta: dict[str, Any]) -> str:
    return json.dumps({**meta, "checksum": _checksum(meta)}, indent=1)


def _checksum(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def cache_folder(chosen: str | None = None) -> Path:
    """Return the folder for files that can be made again: `chosen`, else MTFORMER_CACHE, else ~/.cache/mtformer."""
    return Path(chosen or os.environ.get("MTFORMER_CACHE") or "~/.cache/mtformer").expanduser()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success it is synced and renamed to `path`, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary = _beside(path, "tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, replaces: bool = True) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; on success its files are synced and it takes the place of `path`.

    What it replaces is deleted afterwards; with `replaces` off, what is there stays and the new one goes. No system
    renames over a full folder, so for an instant neither stands there; should the process be killed in it,
    `clear_leftovers` puts the old one back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary, old = _beside(path, "tmp"), _beside(path, "old")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        sync(temporary)
        if path.exists():
            if not replaces:
                return
            os.rename(path, old)
        os.rename(temporary, path)
        sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.rename(old, path)
        for folder in (old, temporary):
            shutil.rmtree(folder, ignore_errors=True)


def delete_folder(path: Path) -> None:
    """Deletes a folder, which is gone at once: whoever is killed meanwhile leaves no half of it in its place."""
    temporary = _beside(path, "tmp")
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)  # what still stands is cleared with other leftovers


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Clears away what killed processes left of their writing in `folder`: of everything, or of this name only.

    What they were about to replace is put back when its place is empty. What belongs to a process that lives, or may
    live on another machine, is not touched.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        found = LEFTOVER.fullmatch(path.name)
        if found is None or name not in (None, found["name"]) or _may_live(path, int(found["pid"]), found["host"]):
            continue
        target = folder / found["name"]
        if found["kind"] == "old" and not target.exists():
            os.rename(path, target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}@{platform.node()}.{os.getpid()}.{kind}")


def _may_live(path: Path, pid: int, host: str) -> bool:
    """Whether the process that wrote a temporary file or folder may still be at it."""
    if host != platform.node():
        return time.time() - path.stat().st_mtime < FOREIGN_SECONDS
    if pid == os.getpid():
        return False  # of an earlier process with our number, as in a container: we write one thing at a time
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


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


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
