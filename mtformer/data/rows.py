"""Pairs out of rows that have fields: lines of JSON, and rows of data sets."""

import json
from dataclasses import dataclass
from typing import Any

from mtformer.config.data import DataConfig, HubDataset, JsonlFile
from mtformer.data.report import Pair


class RowError(Exception):
    """What is wrong with a row, and what to do; whoever reads the rows says which one it is."""


def parse_row(line: str) -> dict[str, Any]:
    """The JSON object that a line holds.

    Raises:
        RowError: when it holds none.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON ({error.msg}: column {error.colno}); each line must be one JSON object") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets as deep
        raise RowError(f"not JSON that can be read ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise RowError(f"not a JSON object but {line[:40]!r}; each line must be one JSON object")
    return row


@dataclass(frozen=True)
class Fields:
    """Where in a row the two texts stand: the keys on the way to each."""

    src: tuple[str, ...]
    tgt: tuple[str, ...]

    @classmethod
    def of(cls, source: JsonlFile | HubDataset, data: DataConfig, first_row: dict[str, Any]) -> "Fields":
        """Those that a source names, else those that its first row has."""
        src = source.src_field or _default(source.src_lang or data.src_lang, first_row)
        tgt = source.tgt_field or _default(source.tgt_lang or data.tgt_lang, first_row)
        return cls(tuple(src.split(".")), tuple(tgt.split(".")))

    def pair(self, row: dict[str, Any]) -> Pair:
        """The texts of a row; null is an empty one.

        Raises:
            RowError: when a field is not there, or no text.
        """
        return _text(row, self.src, "src_field"), _text(row, self.tgt, "tgt_field")


def _default(language: str, first_row: dict[str, Any]) -> str:
    nested = first_row.get("translation")
    return f"translation.{language}" if isinstance(nested, dict) and language in nested else language


def _text(row: dict[str, Any], keys: tuple[str, ...], option: str) -> str:
    value: Any = row
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            there = f"{', '.join(value):.100}" if isinstance(value, dict) else f"only {value!r:.40}"
            raise RowError(f"no field '{'.'.join(keys)}' (there: {there}); name the field by {option}")
        value = value[key]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError(f"field '{'.'.join(keys)}' is not text but {value!r:.40}; name another by {option}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError(f"field '{'.'.join(keys)}' holds half a surrogate pair, which is no character") from error
    return value
