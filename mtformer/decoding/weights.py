"""Selection of the weights of a run: averaged, best, last, the mean of the last N, a step, or a path."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mtformer.errors import CheckpointError, log
from mtformer.files import CHECKSUMS, META, file_sha256, read_meta, unchanged, verify
from mtformer.run_dir import CT2_WEIGHTS, WEIGHTS, RunDir, lower_is_better

MIN_LEAD = 0.01
"""Relative lead in the dev score with which the best checkpoint is preferred to the average. The best of many noisy
scores is too high by chance: in a run on Multi30k both had 41.1 dev BLEU, and the average was 0.6 better on test."""
ADAPTED_METRIC = "bleu new"
"""`training.best_metric` of adapted models."""
ADAPTED_TEXT = "weights that `mtformer adapt` chose on its dev sets, whose scores are therefore slightly too high"
"""Description of the weights of adapted models."""
LATEST = re.compile(r"last:([1-9]\d{0,8})")
"""Name of the latest N checkpoints."""
STEP = re.compile(r"\d{1,18}")
"""Name of the checkpoint of a step."""


def find_weights(run: RunDir, checkpoint: str | None, best_metric: str) -> list[Path]:
    """Return the weight files that `--checkpoint` selects: one, or with `last:N` the latest N, whose mean is used.

    Files listed in meta.json or checksums.json are verified.

    Args:
        run: run directory, bundle or export.
        checkpoint: `averaged`, `best` by a dev metric, `last`, `last:N`, a step, or the path of a checkpoint folder or
            safetensors file; None: the weights of the bundle, or `default_weights`.
        best_metric: dev metric that decides which checkpoint is the best.

    Raise CheckpointError if the checkpoint is damaged or does not exist.
    """
    paths = _find_paths(run, checkpoint, best_metric)
    intact_steps = run.steps()
    for folder in run.checkpoint_folders():
        step = int(folder.name.removeprefix("step-"))
        if step not in intact_steps:
            log.warning(
                "%s is damaged, so this checkpoint is not used; restore the file from a copy, or delete the checkpoint",
                folder / META,
            )

    for path in paths:
        _verified_sha256(run, path)
    return paths


@contextlib.contextmanager
def verified_weights(run: RunDir, paths: Sequence[Path]) -> Iterator[list[str]]:
    """Verify weight files again, and yield the SHA-256 of each; load them inside the context.

    Raise CheckpointError if a file is damaged, or is written to or replaced inside the context: the weights that are
    loaded are then those that were verified.
    """
    with unchanged(*paths):
        yield [_verified_sha256(run, path) for path in paths]


def _verified_sha256(run: RunDir, path: Path) -> str:
    """Return the SHA-256 of a weight file; raise CheckpointError if meta.json or checksums.json has another one."""
    listing = _listing_of(run, path)
    if listing is None:
        return file_sha256(path)

    meta = verify(path.parent, path.name, listing=listing)
    return str(meta["sha256"][path.name])


def _listing_of(run: RunDir, path: Path) -> str | None:
    """Return the name of the file with the SHA-256 of a weight file; None for another file that the user names."""
    folder = path.parent
    if folder.parent == run.checkpoints:
        return META
    if path.name == WEIGHTS and (folder / META).exists():
        return META
    if path.name == WEIGHTS and (folder / CHECKSUMS).exists():
        return CHECKSUMS
    return CHECKSUMS if path == run.bundle_weights else None


class DefaultWeights(NamedTuple):
    """Checkpoint of a run directory that is used by default."""

    folder: Path
    gain: float | None
    """Dev score of the averaged weights minus that of the best checkpoint; None unless both are known."""
    text: str
    """The checkpoint and its score compared to the alternative, in one line; empty if there was no alternative."""


def default_weights(run: RunDir, best_metric: str) -> DefaultWeights | None:
    """Return the averaged weights, or the best checkpoint if its dev score is clearly better; None without checkpoints.

    Without dev scores, return the averaged weights, or else the last checkpoint; if only checkpoints have dev scores,
    return the best checkpoint. Raise CheckpointError if meta.json of the averaged weights is damaged.
    """
    best_steps = run.best_steps(best_metric)
    if not run.averaged.is_dir():
        steps = best_steps[:1] or run.steps()[-1:]
        if not steps:
            return None
        return DefaultWeights(run.checkpoint(steps[0]), None, "")

    meta = read_meta(run.averaged)
    if meta.get("is_chosen"):
        return DefaultWeights(run.averaged, None, ADAPTED_TEXT)
    if not best_steps:
        return DefaultWeights(run.averaged, None, "averaged weights (not validated: there is no dev data)")

    best_step = best_steps[0]
    best_folder = run.checkpoint(best_step)
    best_metrics = read_meta(best_folder)["metrics"]
    best_score = best_metrics[best_metric]
    best_text = f"best checkpoint (step {best_step}, dev {best_metric} {best_score:.4g})"
    average_score = meta["metrics"].get(best_metric)
    if average_score is None:
        return DefaultWeights(best_folder, None, f"{best_text}; the averaged weights were not validated")

    gain = average_score - best_score
    average_text = f"averaged weights (dev {best_metric} {average_score:.4g})"
    lead = gain if lower_is_better(best_metric) else -gain
    if lead <= MIN_LEAD * best_score:
        return DefaultWeights(run.averaged, gain, f"{average_text}, {gain:+.2f} compared to the {best_text}")
    return DefaultWeights(best_folder, gain, f"{best_text}; the {average_text} differ by {gain:+.2f}")


def are_others(run: RunDir, hashes: Sequence[str], best_metric: str) -> bool:
    """Return True if weights are not the default weights of a run, as after further training.

    Args:
        run: run directory. If it has no weights, the result is False.
        hashes: SHA-256 of the weight files.
        best_metric: see `find_weights`.
    """
    with contextlib.suppress(CheckpointError):  # without weights, scores can still be compared
        default = default_weights(run, best_metric)
        if default is not None:
            default_hash = read_meta(default.folder)["sha256"][WEIGHTS]
            return list(hashes) != [default_hash]
    return False


def is_default(run: RunDir, weights: Sequence[Path], best_metric: str) -> bool:
    """Return True if these are the weights for which the confidence is fitted.

    Args:
        run: run directory, bundle or export.
        weights: weight files of the run.
        best_metric: see `find_weights`.
    """
    if run.is_bundle or (run.path / CT2_WEIGHTS).is_file():
        return True  # it has one set of weights

    default = default_weights(run, best_metric)
    if default is None:
        return False
    return list(weights) == [default.folder / WEIGHTS]


def is_adapted(run: RunDir, weights: Path, best_metric: str) -> bool:
    """Return True if `mtformer adapt` made these weights.

    `adapted` in meta.json, or in checksums.json of a bundle, records it. Version 0.3 did not write it; the best metric
    of its adapted runs and bundles is `ADAPTED_METRIC`.

    Args:
        run: run directory or bundle.
        weights: weight file of the run or bundle.
        best_metric: `training.best_metric` of the run or bundle.
    """
    if run.is_bundle:
        recorded = read_meta(run.path, CHECKSUMS).get("adapted")
    elif (weights.parent / META).exists():
        recorded = read_meta(weights.parent).get("adapted")
    else:
        recorded = None
    return best_metric == ADAPTED_METRIC if recorded is None else bool(recorded)


def _find_paths(run: RunDir, checkpoint: str | None, best_metric: str) -> list[Path]:
    """Return the weight files that a name selects; raise CheckpointError if there are none."""
    if checkpoint is None:
        return [_default_path(run, best_metric)]

    latest = LATEST.fullmatch(checkpoint)
    if latest is not None and not run.is_bundle:
        return _latest_paths(run, int(latest[1]))

    folder = _named_folder(run, checkpoint, best_metric)
    if folder is not None:
        return [folder / WEIGHTS]
    for path in (Path(checkpoint), Path(checkpoint, WEIGHTS)):
        if path.is_file():
            return [path]
    raise CheckpointError(f"{run.path}: no checkpoint '{checkpoint}'; {_available(run, best_metric)}")


def _default_path(run: RunDir, best_metric: str) -> Path:
    """Return the weights of the bundle, or the default weights of the run; raise CheckpointError if it has none."""
    if run.is_bundle:
        return run.bundle_weights

    default = default_weights(run, best_metric)
    if default is not None:
        return default.folder / WEIGHTS
    if (run.path / CT2_WEIGHTS).is_file():
        raise CheckpointError(
            f"{run.path}: a CTranslate2 export; translate, eval and serve can load it, other commands need the run "
            "that it was made from"
        )
    raise CheckpointError(f"{run.path}: {_available(run, best_metric)}; train it first")


def _named_folder(run: RunDir, checkpoint: str, best_metric: str) -> Path | None:
    """Return the folder of a checkpoint of the run, or None if it has none with this name."""
    if checkpoint == "averaged" and run.averaged.is_dir():
        return run.averaged
    if checkpoint == "best":
        best_steps = run.best_steps(best_metric)
        return run.checkpoint(best_steps[0]) if best_steps else None
    if checkpoint == "last":
        steps = run.steps()
        return run.checkpoint(steps[-1]) if steps else None
    if STEP.fullmatch(checkpoint):
        folder = run.checkpoint(int(checkpoint))
        return folder if folder.is_dir() else None
    return None


def _latest_paths(run: RunDir, num_checkpoints: int) -> list[Path]:
    """Return the weights of the latest checkpoints; raise CheckpointError if there are fewer."""
    steps = run.regular_steps()[-num_checkpoints:]
    if len(steps) < num_checkpoints:
        raise CheckpointError(
            f"{run.checkpoints}: {num_checkpoints} checkpoints requested, but only {len(steps)} exist; give last:N "
            "with a smaller N, or keep more with training.keep_last"
        )
    return [run.checkpoint(step) / WEIGHTS for step in steps]


def _available(run: RunDir, best_metric: str) -> str:
    """Return a text that lists the checkpoints of a run; raise DamagedError if all are damaged."""
    if run.is_bundle:
        return "a bundle has one set of weights; leave the checkpoint out"

    names = []
    if run.averaged.is_dir():
        names.append("averaged")
    if run.best_steps(best_metric):
        names.append("best")
    steps = run.steps()
    if steps:
        names += ["last", "last:N", *map(str, steps)]
    if names:
        return f"available: {', '.join(names)}"

    for folder in run.checkpoint_folders():
        read_meta(folder)  # raises the error if a file is damaged
    return "it has no checkpoint yet"
