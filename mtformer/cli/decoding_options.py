"""Options of the commands that translate: for the weights and the device, and one for each decoding key of the config.

The option for `decoding.beam_size` is --beam-size.
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

ALIASES = {"sampling": ["--sample"]}
KEYS = [key for key in DecodingConfig.model_fields if key_of(DecodingConfig, key).is_option]


@dataclass(frozen=True)
class Load:
    """Function that loads a translator with the given options, also in another process."""

    checkpoint: list[str] | None
    device: str
    precision: str
    backend: str
    decoding: dict[str, Any]

    def __call__(self, runs: Sequence[Path], to: str | None) -> "Translator":
        """Load runs, with a target language."""
        from mtformer.decoding.translator import Translator

        translator = Translator.load(runs, self.checkpoint or None, self.device, self.precision, self.backend)
        translator = translator.into(to)
        try:
            return translator.with_decoding(**self.decoding)
        except ConfigError as error:
            found = re.fullmatch(r"decoding: (\w+)(:.*)", str(error))
            raise ConfigError(f"--{found[1].replace('_', '-')}{found[2]}" if found else str(error)) from error


def with_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with these options added instead of its parameter `load`, a function of type `Load`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "load"]
    types = get_type_hints(DecodingConfig)
    options = {"device": DeviceOption, "precision": PrecisionOption, "backend": BackendOption}
    options |= {"checkpoint": CheckpointsOption, **{key: _option(key, types[key]) for key in KEYS}}

    def with_load(device: str, precision: str, backend: str, checkpoint: list[str] | None, **values: Any) -> None:
        decoding = {key: values.pop(key) for key in KEYS}
        command(**values, load=Load(checkpoint, device, precision, backend, decoding))

    # Typer reads a command's options from its signature.
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in own]
    for key, kind in options.items():
        parameters.append(inspect.Parameter(key, keyword, default="auto" if key == "device" else None, annotation=kind))
    with_load.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # unknown to mypy
    with_load.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_load.__doc__ = command.__doc__
    return with_load


def _option(key: str, kind: Any) -> Any:
    name = key.replace("_", "-")
    names = [f"--{name}/--no-{name}" if kind is bool else f"--{name}", *ALIASES.get(key, ())]
    text = " ".join((DecodingConfig.model_fields[key].description or "").split())
    return Annotated[kind | None, optional(text, *names)]
