"""Base class of config sections, key metadata, and shared types."""

import difflib
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
LARGEST = 2**53  # maximum integer; larger numbers are not exact in tensors and JSON


def _check_size(number: int) -> int:
    if number > LARGEST:
        raise ValueError(f"must be at most {LARGEST:,}")
    return number


Count = Annotated[int, Field(ge=0), AfterValidator(_check_size)]
Positive = Annotated[int, Field(ge=1), AfterValidator(_check_size)]
# YAML has lists but no tuples.
Pair = Annotated[tuple[Fraction, Fraction], BeforeValidator(lambda one: tuple(one) if type(one) is list else one)]


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
    off: Any = ...
    """Value that disables a filter; disabled filters do not affect the fingerprint of prepared corpora."""
    in_fingerprint: bool = True
    """True if a filter key affects prepared corpora."""


class Section(BaseModel):
    """Base class of config sections; instances are frozen, and unknown keys are errors."""

    on_resume: ClassVar[OnResume | None] = None
    """Default `on_resume` of the keys in this section; None: inherited from the key of the section itself."""
    removed: ClassVar[dict[str, Any]] = {}
    """Keys of earlier versions, with the value that turned them off; see `loading.without_removed_keys`."""
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def nearest(word: str, allowed: list[str]) -> str:
    """Return a suggestion of the most similar allowed word, or an empty string."""
    found = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def key_of(section: type[Section], name: str) -> Key:
    """Return the metadata of a key in a section."""
    return next((one for one in section.model_fields[name].metadata if isinstance(one, Key)), Key())
