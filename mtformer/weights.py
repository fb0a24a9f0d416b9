"""Read and average weights from safetensors files, and load them into a model; tied weights are stored once."""

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor, nn

from mtformer.errors import CheckpointError
from mtformer.files import require_file
from mtformer.formatting import printable

CLOSED = ("output_bias", "final_logits_bias")
"""Biases (also of Marian models) that may contain -inf for classes that never occur (see `training.loss`)."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Data types of tensors that can be read."""
NAME_LENGTH = 100
"""Maximum number of characters of a tensor's name in a message."""
REASON_LENGTH = 200
"""Maximum number of characters of a library's message in ours."""


def shown_name(name: object) -> str:
    """Return the name of a tensor for a message; the names in a file can be any text."""
    return printable(str(name), NAME_LENGTH)


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with NaN or infinite values, or None if there is none."""
    for name, weight in weights.items():
        is_valid = weight.isfinite()
        if name in CLOSED:
            is_valid |= weight.isneginf()
        if not is_valid.all():
            return name
    return None


def require_finite(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a tensor read from `path` has NaN or infinite values, or is no dense float tensor."""
    for name, weight in weights.items():
        is_dense = weight.layout == torch.strided and not weight.is_nested and not weight.is_meta
        if weight.dtype not in DTYPES or not is_dense:
            actual = str(weight.dtype).removeprefix("torch.") if is_dense else "not dense"
            supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise CheckpointError(
                f"{path}: {shown_name(name)} is {actual}, but weights must be dense tensors of type {supported}; "
                "convert them"
            )

    invalid_name = not_finite(weights)
    if invalid_name is not None:
        raise CheckpointError(f"{path}: {shown_name(invalid_name)} has NaN or infinite values; use another checkpoint")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name.

    Raise CheckpointError if the file is missing, damaged, or not in safetensors format, or a tensor is not finite.
    """
    try:
        require_file(path)
        weights = _load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; check the path") from None
    except (SafetensorError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CheckpointError(
            f"{path}: truncated or damaged ({printable(reason, REASON_LENGTH)}); use another checkpoint"
        ) from error
    require_finite(path, weights)
    return weights


def _load_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; read it as a whole if its drive has no memory maps."""
    try:
        return load_file(path)
    except (OSError, RuntimeError) as error:  # safetensors raises the former, and torch the latter
        is_without_maps = isinstance(error, OSError) and error.errno in (errno.ENODEV, errno.ENOSYS, errno.EINVAL)
        if not is_without_maps and "mmap" not in str(error):
            raise
    return load(path.read_bytes())


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights in files (Vaswani et al. 2017, section 6.1); for errors see `read_weights`."""
    if len(paths) == 1:
        return read_weights(paths[0])

    sums: dict[str, Tensor] = {}
    for path in paths:
        # Sum in float64, so that the order of the files does not change the result.
        weights = {name: weight.double() for name, weight in read_weights(path).items()}
        if not sums:
            sums = weights
            continue
        if _shapes(weights) != _shapes(sums):
            raise CheckpointError(f"{path}: its tensors are not those of {paths[0]}; average checkpoints of one model")
        for name, weight in weights.items():
            sums[name] += weight
    return {name: (total / len(paths)).float() for name, total in sums.items()}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def _full_weight(weight: Tensor, parameter: Tensor) -> Tensor:
    """Return the weight for a parameter that is not sharded."""
    return weight


@torch.no_grad()
def load_weights(model: nn.Module, *paths: Path, place: Callable[[Tensor, Tensor], Tensor] = _full_weight) -> None:
    """Load the mean of the weights in safetensors files into the model.

    Args:
        model: the model.
        paths: files with the same tensors.
        place: function of a full weight and its parameter that returns the local shard, if the model is sharded.

    Raises:
        CheckpointError: if a tensor does not fit the model; the message names the first one.
    """
    path = ", ".join(map(str, paths))
    weights = average_weights(paths)
    parameters = dict(model.named_parameters())
    for name in sorted(weights.keys() ^ parameters.keys()):
        where = "only in the file" if name in weights else "only in the model"
        raise CheckpointError(
            f"{path}: does not fit the config: {shown_name(name)} is {where}; use weights that were trained with this "
            "model section"
        )

    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{list(weights[name].shape)} in the file and {list(parameter.shape)} in the model"
            raise CheckpointError(
                f"{path}: does not fit the config: {name} is {shapes}; use weights that were trained with this model "
                "section"
            )
        parameter.copy_(place(weights[name], parameter))
