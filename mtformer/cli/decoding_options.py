"""Command-line options for decoding, one for each key in the `decoding` section, such as --beam-size for beam_size."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from mtformer.cli.options import optional
from mtformer.config.schema import DecodingConfig
from mtformer.config.section import key_of

ALIASES = {"sampling": ["--sample"]}
KEYS = [key for key in DecodingConfig.model_fields if key_of(DecodingConfig, key).is_option]


def with_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the decoding options added; the given ones are passed to it as the dict `settings`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
    types = get_type_hints(DecodingConfig)
    options = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(key, types[key]))
        for key in KEYS
    ]

    def with_settings(**values: Any) -> None:
        settings = {key: values.pop(key) for key in KEYS}
        command(**values, settings={key: value for key, value in settings.items() if value is not None})

    # Typer reads a command's options from its signature.
    parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *options]
    with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # unknown to mypy
    with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_settings.__doc__ = command.__doc__
    return with_settings


def _option(key: str, kind: Any) -> Any:
    """Return the annotation of the option for a key; its value is validated by the schema."""
    name = key.replace("_", "-")
    names = [f"--{name}/--no-{name}" if kind is bool else f"--{name}", *ALIASES.get(key, ())]
    text = " ".join((DecodingConfig.model_fields[key].description or "").split())
    return Annotated[kind | None, optional(text, *names)]
