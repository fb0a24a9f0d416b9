"""Arguments and options that several commands share."""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mtformer.cli.help import DEVICE, INPUT_OUTPUT
from mtformer.enums import Backend
from mtformer.errors import ConfigError

RUN = "RUN"
"""Name of arguments that are run directories or bundles."""


def complete_key(incomplete: str) -> list[str]:
    """Return the config keys that start with `incomplete`, in the form of overrides: `training.learning_rate=`."""
    from mtformer.config.fields import section_keys
    from mtformer.config.yaml_text import dotted

    keys = [dotted(path) for path in section_keys(leaves_only=True)]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories and bundles whose path starts with `incomplete`, up to two folders below it."""
    runs: set[str] = set()
    for folders in ("*", "*/*"):
        pattern = f"{glob.escape(incomplete)}{folders}/config.yaml"
        runs.update(map(os.path.dirname, glob.iglob(pattern)))
    return sorted(runs)


def require_at_most_one(options: Mapping[str, object]) -> None:
    """Raise ConfigError if more than one of the options has a value."""
    names = [name for name, value in options.items() if value]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} cannot be combined; give only one of them")


def optional(text: str, *names: str, metavar: str | None = None, panel: str | None = None, **settings: Any) -> Any:
    """Return a Typer option whose help text does not show its default value.

    Args:
        text: help text.
        names: names of the option; without any, it is named after its parameter.
        metavar: name of the value on the help screen; None for flags.
        panel: panel of the help screen; None: the panel of all other options.
        settings: other arguments of `typer.Option`.
    """
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, show_default=False, **settings)


def argument(text: str, metavar: str, **settings: Any) -> Any:
    """Return a Typer argument whose help text does not show its default value; shells complete runs by `metavar`."""
    if metavar == RUN:
        settings["autocompletion"] = complete_run
    return typer.Argument(help=text, metavar=metavar, show_default=False, **settings)


ON_HELP = "Run on Ray: ray, or ray://HOST:PORT of a cluster."
"""Help of --on, which `translate` shows in another panel than the other commands."""
PRECISION_HELP = (
    "fp32, bf16, fp16 (CUDA), int8 (CTranslate2 on a CPU), or auto, the fastest. Default: fp32; on CUDA fp16; with "
    "CTranslate2 as stored."
)
"""Help of --precision."""
CHECKPOINT_HELP = (
    "averaged, best, last, last:N (mean of the last N), a step, or a path. Default: averaged, or best if it is "
    "clearly better on dev; without dev data, averaged if it exists, else last."
)
"""Help of --checkpoint for one checkpoint."""
CHECKPOINTS_HELP = f"{CHECKPOINT_HELP} Repeat for an ensemble."
"""Help of --checkpoint for one or several checkpoints."""
BACKEND_HELP = "mtformer or ctranslate2. Default: ctranslate2 for its exports and for int8 on a CPU, else mtformer."
"""Help of --backend."""

ConfigArgument = Annotated[Path, argument("YAML file of the experiment.", "CONFIG")]
"""The config of an experiment."""
OverridesArgument = Annotated[
    list[str] | None,
    argument(
        "Values that replace those of the config, such as training.seed=2.",
        "SECTION.KEY=VALUE",
        autocompletion=complete_key,
    ),
]
"""Values that replace those of the config."""
EnsembleArgument = Annotated[
    list[Path], argument("Run directory, bundle or hub:OWNER/NAME; several form an ensemble.", "RUN")
]
"""One or more runs whose models translate together."""

ToOption = Annotated[
    str | None, optional("Target language (default: data.tgt_lang).", metavar="LANG", panel=INPUT_OUTPUT)
]
"""Target language of a multilingual model."""
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.", metavar="NAME", rich_help_panel=DEVICE)]
"""Device that computes."""
PrecisionOption = Annotated[str | None, optional(PRECISION_HELP, metavar="NAME", panel=DEVICE)]
"""Number format of the computation."""
BackendOption = Annotated[Backend | None, optional(BACKEND_HELP, metavar="NAME", panel=DEVICE)]
"""Decoding backend."""
CheckpointsOption = Annotated[
    list[str] | None, optional(CHECKPOINTS_HELP, "--checkpoint", metavar="NAME", panel=DEVICE)
]
"""Weights of the run."""
OnOption = Annotated[str | None, optional(ON_HELP, "--on", metavar="ADDRESS")]
"""Ray cluster."""
