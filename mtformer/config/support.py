"""Refusal of settings that a search backend or an export does not support.

Each key declares which libraries support it, and with which values (see `Support`). What is not declared is refused, so
that no setting is ignored in silence: a new key of the model, its tokenizer or its search works with our own search and
in bundles only, until its declaration names other libraries.
"""

from collections.abc import Iterable, Sequence

from mtformer.config.schema import Config, DecodingConfig
from mtformer.config.section import CTRANSLATE2, Section, Support, format_value, key_of
from mtformer.errors import ConfigError

DATA_KEYS = ("language_tags",)
"""Keys of `data` that determine the input or output of a model; the others describe corpora."""


def require_backend(decoding: DecodingConfig, library: Support) -> None:
    """Raise ConfigError for the first search setting that the backend of a library does not support."""
    for name in type(decoding).model_fields:
        declared = key_of(type(decoding), name).backends
        _require(decoding, f"decoding.{name}", declared, library, "use --backend mtformer")


def require_export(config: Config, library: Support, alternative: str) -> None:
    """Raise ConfigError for the first setting that models for a library do not support.

    Args:
        config: config of the run.
        library: library that will load the model.
        alternative: what to do instead of changing the setting, for the error.

    For CTranslate2, the search settings are not checked here: options may replace them, so `require_backend` checks
    them before each search.
    """
    _require_keys(config.data, "data", DATA_KEYS, library, alternative)
    _require_keys(config.tokenizer, "tokenizer", type(config.tokenizer).model_fields, library, alternative)
    _require_keys(config.model, "model", type(config.model).model_fields, library, alternative)
    if library != CTRANSLATE2:
        _require_keys(config.decoding, "decoding", type(config.decoding).model_fields, library, alternative)


def _require_keys(section: Section, prefix: str, names: Iterable[str], library: Support, alternative: str) -> None:
    for name in names:
        declared = key_of(type(section), name).exports
        _require(section, f"{prefix}.{name}", declared, library, alternative)


def _require(section: Section, key: str, declared: Sequence[Support], library: Support, alternative: str) -> None:
    """Raise ConfigError if no declaration for the library includes the value of a key."""
    prefix, _, name = key.partition(".")
    value = getattr(section, name)
    supports = [support for support in declared if support.library == library.library]
    if any(support.includes(value, section) for support in supports):
        return

    options: list[str] = []
    for support in supports:
        options += map(format_value, support.values or ())
        options += [support.unless.text] if support.unless is not None else []
    verb = "set" if prefix == "decoding" else "train with"
    remedy = f"{verb} {' or '.join(options)}, or {alternative}" if options else alternative
    raise ConfigError(f"{key} {format_value(value)}: not supported by {library.library}; {remedy}")
