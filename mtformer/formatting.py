"""Formats of text, sizes, durations and config values in tables and messages."""

import json
from typing import Any


def printable(text: str, length: int | None = None) -> str:
    """Truncate text to `length` characters and escape nonprintable characters, for a message on one line."""
    if length is not None and len(text) > length:
        text = text[: length - 1] + "…"
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def format_bytes(number: float) -> str:
    """Return a number of bytes in GB, or in MB below 0.1 GB."""
    if number >= 1e8:
        return f"{number / 1e9:.2f} GB"
    return f"{number / 1e6:.2f} MB"


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    total_minutes, full_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(total_minutes, 60)
    return f"{hours}:{minutes:02d}:{full_seconds:02d}"


def format_value(value: Any) -> str:
    """Return a string unchanged, and any other config value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
