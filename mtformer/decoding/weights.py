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


def find_weights(run: RunDir, checkpoint: str | None, best_metric: str) -> list[Path]:
    """Return the weight files that `--checkpoint` selects: one, or with `last:N` the latest N, whose mean is used.

    Names are `averaged`, `best` by a dev metric, `last`, `last:N`, a step, and the path of a checkpoint folder or
    safetensors file; None: the weights of the bundle, or `default_weights`. Files listed in meta.json or checksums.json
    are verified. Raise CheckpointError if the checkpoint is damaged or does not exist.
    """
    paths = _find(run, checkpoint, best_metric)
    steps = run.steps()
    for folder in run.checkpoint_folders():
        if int(folder.name[5:]) not in steps:
            log.warning("%s is damaged, so this checkpoint is not used", folder / META)
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
    if path.parent.parent == run.checkpoints or (path.name == WEIGHTS and (path.parent / META).exists()):
        listing = META
    elif path == run.bundle_weights or (path.name == WEIGHTS and (path.parent / CHECKSUMS).exists()):
        listing = CHECKSUMS
    else:
        return file_sha256(path)  # a file that the user names has no checksum
    return str(verify(path.parent, path.name, listing=listing)["sha256"][path.name])


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
    steps = run.best_steps(best_metric)[:1]
    if not run.averaged.is_dir():
        steps = steps or run.steps()[-1:]
        return DefaultWeights(run.checkpoint(steps[0]), None, "") if steps else None
    meta = read_meta(run.averaged)
    average = meta["metrics"].get(best_metric)
    if meta.get("is_chosen"):
        return DefaultWeights(run.averaged, None, "weights chosen by `mtformer adapt`")
    if not steps:
        return DefaultWeights(run.averaged, None, "averaged weights (not validated: there is no dev data)")
    folder = run.checkpoint(steps[0])
    best = read_meta(folder)["metrics"][best_metric]
    best_text = f"best checkpoint (step {steps[0]}, dev {best_metric} {best:.4g})"
    if average is None:
        return DefaultWeights(folder, None, f"{best_text}; the averaged weights were not validated")
    average_text = f"averaged weights (dev {best_metric} {average:.4g})"
    gain = average - best
    if (gain if lower_is_better(best_metric) else -gain) <= MIN_LEAD * best:
        return DefaultWeights(run.averaged, gain, f"{average_text}, {gain:+.2f} compared to the {best_text}")
    return DefaultWeights(folder, gain, f"{best_text}; the {average_text} differ by {gain:+.2f}")


def are_others(run: RunDir, hashes: Sequence[str], best_metric: str) -> bool:
    """Return True if these SHA-256 are not those of the default weights, as after further training."""
    with contextlib.suppress(CheckpointError):  # without weights, scores can still be compared
        default = default_weights(run, best_metric)
        return default is not None and [read_meta(default.folder)["sha256"][WEIGHTS]] != list(hashes)
    return False


def is_default(run: RunDir, weights: Sequence[Path], best_metric: str) -> bool:
    """Return True if these are the weights for which the confidence of a run, bundle or export is fitted."""
    if run.is_bundle or (run.path / CT2_WEIGHTS).is_file():
        return True  # it has one set of weights
    default = default_weights(run, best_metric)
    return default is not None and list(weights) == [default.folder / WEIGHTS]


def is_adapted(run: RunDir, weights: Path, best_metric: str) -> bool:
    """Return True if `mtformer adapt` made these weights of a run or bundle.

    `adapted` in meta.json, or in checksums.json of a bundle, records it. Version 0.3 did not write it; the best metric
    of its adapted runs and bundles is `ADAPTED_METRIC`.
    """
    if run.is_bundle:
        recorded = read_meta(run.path, CHECKSUMS).get("adapted")
    elif (weights.parent / META).exists():
        recorded = read_meta(weights.parent).get("adapted")
    else:
        recorded = None
    return best_metric == ADAPTED_METRIC if recorded is None else bool(recorded)


def _find(run: RunDir, checkpoint: str | None, best_metric: str) -> list[Path]:
    if checkpoint is None and run.is_bundle:
        return [run.bundle_weights]
    if checkpoint is None:
        default = default_weights(run, best_metric)
        if default is not None:
            return [default.folder / WEIGHTS]
        if (run.path / CT2_WEIGHTS).is_file():
            raise CheckpointError(f"{run.path}: a CTranslate2 export; translate, eval and serve can load it")
        raise CheckpointError(f"{run.path}: {_available(run, best_metric)}; train it first")
    if checkpoint == "averaged" and run.averaged.is_dir():
        return [run.averaged / WEIGHTS]
    if checkpoint == "best" and (best := run.best_steps(best_metric)):
        return [run.checkpoint(best[0]) / WEIGHTS]
    if checkpoint == "last" and (steps := run.steps()):
        return [run.checkpoint(steps[-1]) / WEIGHTS]
    if (last := re.fullmatch(r"last:([1-9]\d{0,8})", checkpoint)) and not run.is_bundle:
        steps = run.regular_steps()[-int(last[1]) :]
        if len(steps) < int(last[1]):
            raise CheckpointError(f"{run.checkpoints}: {last[1]} checkpoints requested, but only {len(steps)} exist")
        return [run.checkpoint(step) / WEIGHTS for step in steps]
    if re.fullmatch(r"\d{1,18}", checkpoint) and run.checkpoint(int(checkpoint)).is_dir():
        return [run.checkpoint(int(checkpoint)) / WEIGHTS]
    for path in (Path(checkpoint), Path(checkpoint, WEIGHTS)):
        if path.is_file():
            return [path]
    raise CheckpointError(f"{run.path}: no checkpoint '{checkpoint}'; {_available(run, best_metric)}")


def _available(run: RunDir, best_metric: str) -> str:
    if run.is_bundle:
        return "a bundle has one set of weights; leave the checkpoint out"
    steps = run.steps()
    names = ["averaged"] if run.averaged.is_dir() else []
    names += ["best"] if run.best_steps(best_metric) else []
    names += ["last", "last:N", *map(str, steps)] if steps else []
    for folder in [] if names else run.checkpoint_folders():
        read_meta(folder)  # raises the error if a file is damaged
    return f"available: {', '.join(names)}" if names else "it has no checkpoint yet"
