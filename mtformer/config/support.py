"""Refusal of settings that a search backend or an export does not support.

Each key declares which libraries support it, and with which values (see `Support`). What is not declared is refused, so
that no setting is ignored in silence: a new key of the model, its tokenizer or its search works with our own search and
in bundles only, until its declaration names other libraries.
"""

from collections.abc import Sequence

from mtformer.config.data import DataConfig
from mtformer.config.schema import Config, DecodingConfig
from mtformer.config.section import CTRANSLATE2, Section, Support, format_value, key_of
from mtformer.errors import ConfigError


def require_backend(decoding: DecodingConfig, library: Support) -> None:
    """Raise ConfigError for the first search setting that the backend of a library does not support."""
    for name in type(decoding).model_fields:
        key = key_of(type(decoding), name)
        _require_value(decoding, f"decoding.{name}", key.backends, library, "use --backend mtformer")


def require_export(config: Config, library: Support, alternative: str) -> None:
    """Raise ConfigError for the first setting that models for a library do not support.

    Args:
        config: config of the run.
        library: library that will load the model.
        alternative: what to do instead of changing the setting, for the error.

    For CTranslate2, the search settings are not checked here: options may replace them, so `require_backend` checks
    them before each search.
    """
    tags = key_of(DataConfig, "language_tags")  # the other keys of the section describe corpora
    _require_value(config.data, "data.language_tags", tags.exports, library, alternative)

    sections: dict[str, Section] = {"tokenizer": config.tokenizer, "model": config.model}
    if library != CTRANSLATE2:
        sections["decoding"] = config.decoding
    for prefix, section in sections.items():
        for name in type(section).model_fields:
            key = key_of(type(section), name)
            _require_value(section, f"{prefix}.{name}", key.exports, library, alternative)


def _require_value(
    section: Section, path: str, declarations: Sequence[Support], library: Support, alternative: str
) -> None:
    """Raise ConfigError unless one of the declarations of a key says that the library supports its value."""
    prefix, _, name = path.partition(".")
    value = getattr(section, name)
    supports = [support for support in declarations if support.library == library.library]
    if any(support.includes(value, section) for support in supports):
        return

    options: list[str] = []
    for support in supports:
        options += map(format_value, support.values or ())
        if support.unless is not None:
            options.append(support.unless.text)
    remedy = alternative
    if options:
        verb = "set" if prefix == "decoding" else "train with"
        remedy = f"{verb} {' or '.join(options)}, or {alternative}"
    setting = f"{path} {format_value(value)}"
    raise ConfigError(f"{setting}: not supported by {library.library}; {remedy}")
