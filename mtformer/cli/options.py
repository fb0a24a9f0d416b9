"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def complete_key(incomplete: str) -> list[str]:
    """Return the keys of the config that begin so, as overrides to be completed: `training.learning_rate=`."""
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
