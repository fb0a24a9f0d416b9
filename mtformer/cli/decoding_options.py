"""Options of the commands that translate: for the weights and the device, and one for each decoding key of the config.

The option for `decoding.beam_size` is --beam-size. Its help text, metavar and panel are those of the config field.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from mtformer.cli.options import BackendOption, CheckpointsOption, DeviceOption, PrecisionOption, optional
from mtformer.config.schema import DecodingConfig
from mtformer.config.section import key_of
from mtformer.errors import ConfigError

if TYPE_CHECKING:
    from mtformer.decoding.translator import Translator

ALIASES = {"sampling": ["--sample"], "beam_tokens": ["--batch-tokens"]}
"""Additional names of options; --batch-tokens is the name in earlier versions."""
KEYS = [key for key in DecodingConfig.model_fields if key_of(DecodingConfig, key).is_option]
"""Decoding keys that have an option."""


@dataclass(frozen=True)
class Load:
    """Function that loads a translator with the values of the options, also in another process."""

    checkpoint: list[str] | None
    device: str
    precision: str
    backend: str
    decoding: dict[str, Any]
    """Values of the decoding keys; None for options that are not given."""

    def __call__(self, runs: Sequence[Path], to: str | None) -> "Translator":
        """Load runs, with a target language."""
        from mtformer.decoding.translator import Translator

        translator = Translator.load(runs, self.checkpoint or None, self.device, self.precision, self.backend)
        translator = translator.into(to)
        try:
            return translator.with_decoding(**self.decoding)
        except ConfigError as error:
            raise ConfigError(_with_option_name(str(error))) from error


def with_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with these options instead of its parameter `load`, a function of type `Load`."""

    def with_load(device: str, precision: str, backend: str, checkpoint: list[str] | None, **values: Any) -> None:
        decoding = {key: values.pop(key) for key in KEYS}
        command(**values, load=Load(checkpoint, device, precision, backend, decoding))

    # Typer reads the options of a command from its signature.
    parameters = [*_parameters_of(command), *_option_parameters()]
    with_load.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # unknown to mypy
    with_load.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_load.__doc__ = command.__doc__
    return with_load


def _with_option_name(message: str) -> str:
    """Replace the key at the start of an error message with its option: `decoding: beam_size: ...`."""
    match = re.fullmatch(r"decoding: (\w+)(:.*)", message)
    if match is None:
        return message
    key, rest = match.groups()
    return f"--{key.replace('_', '-')}{rest}"


def _parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters of a command except for `load`, as keyword parameters."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters if parameter.name != "load"
    ]


def _option_parameters() -> list[inspect.Parameter]:
    """Return the parameters that replace `load`."""
    options: dict[str, Any] = {
        "device": DeviceOption,
        "precision": PrecisionOption,
        "backend": BackendOption,
        "checkpoint": CheckpointsOption,
    }
    types = get_type_hints(DecodingConfig)
    for key in KEYS:
        options[key] = _decoding_option(key, types[key])

    defaults = {"device": "auto"}
    parameters = []
    for name, annotation in options.items():
        default = defaults.get(name)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters


def _decoding_option(key: str, kind: Any) -> Any:
    """Return the annotation of the option of a decoding key, whose value has the type `kind`."""
    metadata = key_of(DecodingConfig, key)
    name = key.replace("_", "-")
    main_name = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    description = DecodingConfig.model_fields[key].description or ""
    text = " ".join(description.split())
    names = [main_name, *ALIASES.get(key, ())]
    return Annotated[kind | None, optional(text, *names, metavar=metadata.metavar, panel=metadata.panel)]
