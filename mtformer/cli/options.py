"""Arguments and options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mtformer.errors import ConfigError


def complete_key(incomplete: str) -> list[str]:
    """Return the config keys that start with `incomplete`, in the form of overrides: `training.learning_rate=`."""
    from mtformer.config.fields import section_keys
    from mtformer.config.yaml_text import dotted

    return [f"{key}=" for key in map(dotted, section_keys(leaves_only=True)) if key.startswith(incomplete)]


def require_at_most_one(options: Mapping[str, object]) -> None:
    """Raise ConfigError if more than one of the options is given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} cannot be combined; give only one of them")


def optional(text: str, *names: str, **settings: Any) -> Any:
    """Return a Typer option without a default value; without `names`, it is named after its parameter."""
    return typer.Option(*names, help=text, show_default=False, **settings)


def argument(text: str, **settings: Any) -> Any:
    """Return a Typer argument without a default value."""
    return typer.Argument(help=text, show_default=False, **settings)


ConfigArgument = Annotated[Path, argument("YAML file of the experiment.")]
OverridesArgument = Annotated[list[str] | None, argument("Overrides of config values.", autocompletion=complete_key)]
PRECISION_HELP = (
    "fp32, bf16, fp16 (CUDA), int8 (CTranslate2 on a CPU), or auto, the fastest. Default: fp32; on CUDA fp16; with "
    "CTranslate2 as stored."
)
CHECKPOINT_HELP = (
    "averaged, best, last, last:N (mean of the last N), a step, or a path. Default: averaged, or best if it is "
    "clearly better on dev; without dev data, averaged if it exists, else last."
)
BACKEND_HELP = "mtformer or ctranslate2. Default: ctranslate2 for its exports and for int8 on a CPU, else mtformer."
EnsembleArgument = Annotated[list[Path], argument("Run directory or bundle; several form an ensemble.")]
ToOption = Annotated[str | None, optional("Target language (default: data.tgt_lang).")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PrecisionOption = Annotated[str | None, optional(PRECISION_HELP)]
BackendOption = Annotated[Literal["mtformer", "ctranslate2"] | None, optional(BACKEND_HELP)]
CheckpointsOption = Annotated[list[str] | None, optional(CHECKPOINT_HELP + " Repeat for an ensemble.", "--checkpoint")]
OnOption = Annotated[str | None, optional("Run on Ray: ray, or ray://HOST:PORT of a cluster.", "--on")]
