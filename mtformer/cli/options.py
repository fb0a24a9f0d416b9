"""Arguments and options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mtformer.errors import ConfigError


def complete_key(incomplete: str) -> list[str]:
    """Return the keys of the config that start with `incomplete`, as overrides: `training.learning_rate=`."""
    from mtformer.config.fields import section_keys
    from mtformer.config.yaml_text import dotted

    return [f"{key}=" for key in map(dotted, section_keys(leaves_only=True)) if key.startswith(incomplete)]


def require_at_most_one(options: Mapping[str, object]) -> None:
    """Raise ConfigError if more than one of these options is given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")


def optional(text: str, *names: str, **settings: Any) -> Any:
    """Return an option without a default; its names are by default those of the parameter."""
    return typer.Option(*names, help=text, show_default=False, **settings)


def argument(text: str, **settings: Any) -> Any:
    """Return an argument without a default."""
    return typer.Argument(help=text, show_default=False, **settings)


ConfigArgument = Annotated[Path, argument("YAML file of the experiment.", metavar="CONFIG")]
OverridesArgument = Annotated[
    list[str] | None,
    argument("Values that replace the file's.", metavar="[SECTION.KEY=VALUE]...", autocompletion=complete_key),
]
PRECISION_HELP = (
    "fp32, bf16, fp16 (CUDA), int8 (on a CPU: by CTranslate2), or auto: what the device multiplies fastest."
)
CHECKPOINT_HELP = (
    "averaged, best, last, last:N (the mean of the last N), a step, or a path; default: the better of averaged and "
    "best on dev; without dev data averaged, else last."
)
BACKEND_HELP = (
    "Library that translates; default: ctranslate2 for a folder exported for it and for int8 on a CPU, else mtformer. "
    "ctranslate2 (extra `ctranslate2`) converts a run on first use."
)
COMET_HELP = (
    "Score by COMET too (extra `comet`): a model's name on the Hugging Face hub, such as Unbabel/wmt22-comet-da, or "
    "its checkpoints/model.ckpt. A checkpoint is a pickle: take one only from a source you trust."
)
EnsembleArgument = Annotated[list[Path], argument("Run directory or bundle; several are an ensemble.")]
ToOption = Annotated[
    str | None, optional("Target language, of a model that has several; default: the config's data.tgt_lang.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PrecisionOption = Annotated[str | None, typer.Option(help=PRECISION_HELP, show_default="fp32")]
BackendOption = Annotated[Literal["mtformer", "ctranslate2"] | None, optional(BACKEND_HELP)]
CheckpointsOption = Annotated[list[str] | None, optional(CHECKPOINT_HELP + " Several are an ensemble.", "--checkpoint")]
CometOption = Annotated[str | None, optional(COMET_HELP, metavar="MODEL")]
