"""Which weights of a run are meant: averaged, best, last, a step, or a path."""

from pathlib import Path

from mtformer.errors import CheckpointError
from mtformer.rundir import CHECKSUMS, CT2_WEIGHTS, META, WEIGHTS, RunDir, read_meta, verify


def find_weights(run: RunDir, checkpoint: str | None, best_metric: str) -> Path:
    """The file of weights that `--checkpoint` names; where meta.json or checksums.json lies beside it, it is as saved.

    Args:
        run: a run directory or a bundle.
        checkpoint: `averaged`, `best`, `last`, a step, or the path of a checkpoint folder or safetensors file. None:
            the bundle's own; else averaged if there, else best, else last.
        best_metric: the dev metric that tells which checkpoint is best.

    Raises:
        CheckpointError: when there is no such checkpoint; the message lists those there are. Or when it is damaged.
    """
    path = _find(run, checkpoint, best_metric)
    if path.parent.parent == run.checkpoints or (path.name == WEIGHTS and (path.parent / META).exists()):
        verify(path.parent, path.name)
    elif path == run.bundle_weights or (path.name == WEIGHTS and (path.parent / CHECKSUMS).exists()):
        verify(path.parent, path.name, listing=CHECKSUMS)
    return path


def _find(run: RunDir, checkpoint: str | None, best_metric: str) -> Path:
    if checkpoint is None:
        return _default(run, best_metric)
    if checkpoint == "averaged" and run.averaged.is_dir():
        return run.averaged / WEIGHTS
    if checkpoint == "best" and (best := run.best_steps(best_metric)):
        return run.checkpoint(best[0]) / WEIGHTS
    if checkpoint == "last" and (steps := run.steps()):
        return run.checkpoint(steps[-1]) / WEIGHTS
    if checkpoint.isdecimal() and run.checkpoint(int(checkpoint)).is_dir():
        return run.checkpoint(int(checkpoint)) / WEIGHTS
    path = Path(checkpoint)
    if path.is_file():
        return path
    if (path / WEIGHTS).is_file():
        return path / WEIGHTS
    raise CheckpointError(f"{run.path}: no checkpoint '{checkpoint}'; {_there(run, best_metric)}")


def _default(run: RunDir, best_metric: str) -> Path:
    if run.is_bundle:
        return run.bundle_weights
    if (run.path / CT2_WEIGHTS).is_file():
        raise CheckpointError(f"{run.path}: exported for CTranslate2; use --backend ctranslate2")
    if run.averaged.is_dir():
        return run.averaged / WEIGHTS
    steps = run.best_steps(best_metric)[:1] or run.steps()[-1:]
    if not steps:
        raise CheckpointError(f"{run.path}: {_there(run, best_metric)}; train it first")
    return run.checkpoint(steps[0]) / WEIGHTS


def _there(run: RunDir, best_metric: str) -> str:
    """What one can choose from, in words."""
    if run.is_bundle:
        return "a bundle has one set of weights; leave the choice out"
    steps = run.steps()
    names = ["averaged"] if run.averaged.is_dir() else []
    names += ["best"] if run.best_steps(best_metric) else []
    names += ["last", *map(str, steps)] if steps else []
    for folder in [] if names else run.checkpoint_folders():
        read_meta(folder)  # says what is wrong with it
    return f"there are: {', '.join(names)}" if names else "it has no checkpoint yet"
