"""Arguments and options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from mtformer.errors import ConfigError


def complete_key(incomplete: str) -> list[str]:
    """Return the keys of the config that start with `incomplete`, as overrides: `training.learning_rate=`."""
    from mtformer.config.fields import section_keys
    from mtformer.config.yaml_text import dotted

    return [f"{key}=" for key in map(dotted, section_keys(leaves_only=True)) if key.startswith(incomplete)]


ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment.", show_default=False)
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.KEY=VALUE]...",
        help="Values that replace the file's.",
        show_default=False,
        autocompletion=complete_key,
    ),
]


def require_at_most_one(options: Mapping[str, object]) -> None:
    """Raise ConfigError if more than one of these options is given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")
