"""Formats of sizes, durations and config values in tables and messages."""

import json
from typing import Any


def format_bytes(number: float) -> str:
    """Return a number of bytes in GB, or in MB below 0.1 GB."""
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.2f} MB"


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_value(value: Any) -> str:
    """Return a string unchanged, and any other config value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
