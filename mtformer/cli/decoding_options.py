"""The options of search, one for each key of the `decoding` section and with its name: --beam-size for beam_size."""

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from mtformer.config.schema import DecodingConfig

PANEL = "Search (default: as the run's config has it)"
HINTS = get_type_hints(DecodingConfig)
KEYS = [key for key in DecodingConfig.model_fields if key != "validation_beam_size"]


def with_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with those options; it gets the ones that were given in `settings`, a dict by key."""
    hints = get_type_hints(command, include_extras=True)
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]

    def with_settings(**values: Any) -> None:
        settings = {key: values.pop(key) for key in KEYS}
        command(**values, settings={key: value for key, value in settings.items() if value is not None})

    kinds = {parameter.name: hints[parameter.name] for parameter in own} | {key: _option(key) for key in KEYS}
    defaults = {parameter.name: parameter.default for parameter in own} | dict.fromkeys(KEYS)
    # Typer reads a command's options from its signature.
    with_settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    with_settings.__annotations__ = kinds
    with_settings.__doc__ = command.__doc__
    return with_settings


def _option(key: str) -> Any:
    """The annotation of an option; what its value may be is the schema's business."""
    kind = HINTS[key]
    choices = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is not Literal and choices:
        kind = choices[0]
    name = key.replace("_", "-")
    names = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    help_text = DecodingConfig.model_fields[key].description
    return Annotated[kind | None, typer.Option(names, help=help_text, show_default=False, rich_help_panel=PANEL)]
