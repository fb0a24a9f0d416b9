"""Weights out of a safetensors file, each checked against the model that takes them; tied ones are there once."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mtformer.errors import CheckpointError


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name; raises CheckpointError when the file is missing, cut short or no safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: cut short or damaged ({reason}); use another checkpoint") from error


@torch.no_grad()
def load_weights(
    model: nn.Module, path: Path, place: Callable[[Tensor, Tensor], Tensor] = lambda weight, parameter: weight
) -> None:
    """Puts a file's weights into the model; raises CheckpointError naming the first tensor that does not fit.

    Args:
        place: (whole weight, parameter) -> what the parameter holds of it, where parameters are sharded.
    """
    weights, parameters = read_weights(path), dict(model.named_parameters())
    for name in sorted(weights.keys() ^ parameters.keys()):
        where = "only in the file" if name in weights else "only in the model"
        raise CheckpointError(f"{path}: does not fit the config: {name} is {where}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{list(weights[name].shape)} in the file and {list(parameter.shape)} in the model"
            raise CheckpointError(f"{path}: does not fit the config: {name} is {shapes}")
        parameter.copy_(place(weights[name], parameter))
