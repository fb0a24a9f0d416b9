"""What all sections of the config are made of."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
# YAML has lists and no tuples.
Pair = Annotated[
    tuple[Fraction, Fraction], BeforeValidator(lambda items: tuple(items) if type(items) is list else items)
]


def _check_tag(tag: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", tag) is None:
        raise ValueError(f"a tag is written in angle brackets and without spaces, such as <bt>, not '{tag}'")
    return tag


TagPiece = Annotated[str, AfterValidator(_check_tag)]
"""A piece that text does not hold by chance."""
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""A set's name is a folder of the run and a part of dotted keys: letters, digits, `_` and `-`."""


class Section(BaseModel):
    """A frozen group of keys; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
