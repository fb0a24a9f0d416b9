"""Base class of config sections, key metadata, and shared types."""

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A number of at least 0 and below 1, such as a dropout probability."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A number from 0 to 1."""
LARGEST = 2**53
"""Maximum integer; larger numbers are not exact in tensors and JSON."""
LONGEST_VALUE = 60
"""Maximum number of characters of a value in an error message; longer ones are cut."""


def _check_size(number: int) -> int:
    if number > LARGEST:
        raise ValueError(f"must be at most {LARGEST:,}; larger numbers are not exact")
    return number


Count = Annotated[int, Field(ge=0), AfterValidator(_check_size)]
"""A whole number of at least 0."""
Positive = Annotated[int, Field(ge=1), AfterValidator(_check_size)]
"""A whole number of at least 1."""


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


Pair = Annotated[tuple[Fraction, Fraction], BeforeValidator(_list_to_tuple)]
"""Two numbers, given as a list in YAML, which has no tuples."""


def _check_tag(tag: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", tag) is None:
        raise ValueError(f"a tag must be in angle brackets and have no spaces, such as <bt>, not '{tag}'")
    return tag


TagPiece = Annotated[str, AfterValidator(_check_tag)]
"""A tag in angle brackets, which rarely occurs in text."""
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""Name of a test set or corpus, used in folder names and dotted keys: letters, digits, `_` and `-`."""
OnResume = Literal["refuse", "warn", "same"]
"""Effect of a changed value when a run is resumed. refuse: error, as saved weights or optimizer state depend on it;
warn: the run continues, but differs from an uninterrupted one; same: allowed; what then differs is logged."""


@dataclass(frozen=True)
class Condition:
    """A condition on the values of a section."""

    text: str
    """The condition in error messages, such as `sampling: true`."""
    is_met: Callable[[Any], bool]
    """Function from the section to the result."""


@dataclass(frozen=True)
class Support:
    """Support of a key by a library, which is a search backend or the target of an export.

    A library supports nothing that is not declared: `Key(exports=(ARGOS.only(True),))` declares one value of a key, and
    `Key(exports=(ARGOS,))` all of its values. The default of a key is a value like any other.
    """

    library: str
    """Name of the library in error messages."""
    values: tuple[Any, ...] | None = None
    """The supported values; None: all."""
    unless: Condition | None = None
    """Condition under which the other values are supported, too."""
    has_effect: bool = True
    """False if the key has no effect on what the library does."""

    def only(self, *values: Any, unless: Condition | None = None) -> "Support":
        """Return the declaration that the library supports only these values, unless a condition is met."""
        return replace(self, values=values, unless=unless)

    @property
    def ignored(self) -> "Support":
        """Declaration that any value may be set, because the key has no effect on what the library does."""
        return replace(self, has_effect=False)

    def includes(self, value: Any, section: "Section") -> bool:
        """Return True if the library supports the value of a key in a section."""
        if self.values is None or value in self.values:
            return True
        return self.unless is not None and self.unless.is_met(section)


CTRANSLATE2 = Support("CTranslate2")
"""CTranslate2 as a search backend, which converts runs and bundles, and as an export."""
HUGGINGFACE = Support("Hugging Face Transformers")
"""The model classes of Transformers, their `generate`, and `MarianTokenizer`."""
ARGOS = Support("Argos Translate")
"""Packages for Argos Translate and LibreTranslate, which contain a CTranslate2 model."""


@dataclass(frozen=True)
class Key:
    """Metadata of a config key in addition to its type, range, default and help text."""

    on_resume: OnResume | None = None
    """See `OnResume`; None: inherited from the section."""
    path: Literal["file", "folder or name", "name or file"] | None = None
    """Set if the value is a path; `folder or name`: a path if the folder exists, otherwise a name; `name or file`: a
    path if it has a suffix, otherwise a name."""
    keeps_saved: bool = False
    """True if a resumed run keeps its own value unless the config sets one, because the default has changed."""
    has_effect: bool = True
    """True if the value affects the result of a run."""
    is_option: bool = True
    """True if a `decoding` key is also an option of `translate`, `eval` and `serve`."""
    panel: str | None = None
    """Panel of the help screen that shows the option of a `decoding` key."""
    metavar: str | None = None
    """Name of the option's value on the help screen; None for flags."""
    side_output: bool = False
    """True if the key enables additional output, which `verify` does not need."""
    in_validation: bool = True
    """True if a `decoding` key also applies to validation in training."""
    only_with: Condition | None = None
    """Condition under which the key has an effect; without it, values other than the default are refused."""
    backends: tuple[Support, ...] = ()
    """Search backends other than our own that support a `decoding` key; see `mtformer.config.support`."""
    exports: tuple[Support, ...] = ()
    """Exports other than bundles that support a key of the model, its tokenizer or its search."""
    off: Any = ...
    """Value that disables a filter; disabled filters do not affect the fingerprint of prepared corpora."""
    in_fingerprint: bool = True
    """True if a filter key affects prepared corpora."""


class Section(BaseModel):
    """Base class of config sections; instances are frozen, and unknown keys are errors."""

    on_resume: ClassVar[OnResume | None] = None
    """Default `on_resume` of the keys in this section; None: inherited from the key of the section itself."""
    removed: ClassVar[dict[str, Any]] = {}
    """Keys of earlier versions, with the value that turned them off; see `loading.with_present_keys`."""
    renamed: ClassVar[dict[str, str]] = {}
    """Keys of earlier versions, with their present names; see `loading.with_present_keys`."""
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _refuse_values_without_effect(self) -> "Section":
        for name, field in type(self).model_fields.items():
            condition = key_of(type(self), name).only_with
            if condition is None or condition.is_met(self):
                continue
            if getattr(self, name) != field.default:
                default = format_value(field.default)
                remedy = f"also set {condition.text}, or set {name} to its default, {default}"
                raise ValueError(f"{name} has an effect only with {condition.text}; {remedy}")
        return self


def nearest(word: str, allowed: list[str]) -> str:
    """Return a suggestion of the most similar allowed word, or an empty string."""
    similar = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    return f"; did you mean '{similar[0]}'?" if similar else ""


def format_value(value: Any) -> str:
    """Return a value as it is shown in error messages."""
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= LONGEST_VALUE:
        return text
    return text[: LONGEST_VALUE - 3] + "..."


def key_of(section: type[Section], name: str) -> Key:
    """Return the metadata of a key in a section."""
    for metadata in section.model_fields[name].metadata:
        if isinstance(metadata, Key):
            return metadata
    return Key()
