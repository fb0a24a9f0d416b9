"""Base class of config sections, metadata of keys, and shared types."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
LARGEST = 2**53
"""Larger numbers do not fit the types of tensors and of JSON."""


def _check_size(number: int) -> int:
    if number > LARGEST:
        raise ValueError(f"must be at most {LARGEST:,}")
    return number


Count = Annotated[int, Field(ge=0), AfterValidator(_check_size)]
Positive = Annotated[int, Field(ge=1), AfterValidator(_check_size)]
# YAML has lists and no tuples.
Pair = Annotated[
    tuple[Fraction, Fraction], BeforeValidator(lambda items: tuple(items) if type(items) is list else items)
]


def _check_tag(tag: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", tag) is None:
        raise ValueError(f"a tag is written in angle brackets and without spaces, such as <bt>, not '{tag}'")
    return tag


TagPiece = Annotated[str, AfterValidator(_check_tag)]
"""A piece that does not occur in text by chance."""
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""Name of a set, which is a folder of the run and part of dotted keys: letters, digits, `_` and `-`."""
OnResume = Literal["refuse", "warn", "same"]
"""Effect of a changed value on a resumed run. refuse: the saved weights or optimizer state depend on it; warn: the run
continues, but differs from one that never stopped; same: no step changes."""


@dataclass(frozen=True)
class Key:
    """Metadata of a key besides its type, range, default and help text.

    Args:
        on_resume: None: that of the section.
        path: the value is a path; `folder or name`: a path if such a folder exists, else a name.
        has_effect: the value has an effect on the result of a run.
        is_option: a `decoding` key that is an option of `translate`, `eval` and `serve` too.
        side_output: the value requests output besides training and its figures; verification trains without it.
        in_validation: a `decoding` key that also applies when dev is decoded in training.
        off: the value that turns a filter off, which then does not change the fingerprint of prepared corpora.
        in_fingerprint: a filter key that has an effect on prepared corpora.
    """

    on_resume: OnResume | None = None
    path: Literal["file", "folder or name"] | None = None
    has_effect: bool = True
    is_option: bool = True
    side_output: bool = False
    in_validation: bool = True
    off: Any = ...
    in_fingerprint: bool = True


class Section(BaseModel):
    """A frozen group of keys; an unknown key is an error."""

    on_resume: ClassVar[OnResume | None] = None
    """Default for the keys of this section; None: that of the key whose value is the section."""
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def key_of(section: type[Section], name: str) -> Key:
    """Return the metadata of a key of a section."""
    return next((one for one in section.model_fields[name].metadata if isinstance(one, Key)), Key())
