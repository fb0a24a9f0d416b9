"""Where the value of each key comes from."""

from dataclasses import dataclass
from typing import Literal

from mtformer.config.yaml_text import KeyPath


@dataclass(frozen=True)
class Origin:
    """Where a value comes from.

    Attributes:
        kind: The schema's default, none (the key is required), a config file, or an override of the command line.
        file: The file, as it is typed or as `extends` leads to it.
        line: The line in `file`, from 1.
        override: The override as it is typed.
    """

    kind: Literal["default", "required", "file", "override"]
    file: str | None = None
    line: int | None = None
    override: str | None = None

    def __str__(self) -> str:
        if self.kind == "override":
            return f"override '{self.override}'"
        if self.kind == "file":
            return str(self.file) if self.line is None else f"{self.file}:{self.line}"
        return self.kind


DEFAULT = Origin("default")
REQUIRED = Origin("required")
Origins = dict[KeyPath, Origin]
"""Origins of all keys and list items that stand in a file or an override, sections included."""


def nearest_origin(origins: Origins, path: KeyPath) -> Origin:
    """The origin of `path`, or of the innermost section around it that has one."""
    for length in range(len(path), -1, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return DEFAULT
