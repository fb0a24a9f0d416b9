"""YAML text to plain values that know their origins, and back.

Scalars have the meaning of YAML 1.2: only `true` and `false` are booleans (the language code `no` is text), `1e-4` is a
number, `010` is ten, and there are no dates. As an extension, `60_000` is a number. Keys are always text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from mtformer.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a config, such as ("data", "train", 0, "src")."""


@dataclass(frozen=True)
class Origin:
    """Source of a value: the schema's default, a file, an override, or none (the key is required)."""

    kind: Literal["default", "required", "file", "override"]
    file: str | None = None
    line: int | None = None
    """From 1."""
    override: str | None = None
    """The override as typed."""

    def __str__(self) -> str:
        if self.kind == "override":
            return f"override '{self.override}'"
        if self.kind == "file":
            return str(self.file) if self.line is None else f"{self.file}:{self.line}"
        return self.kind


DEFAULT = Origin("default")
REQUIRED = Origin("required")
Origins = dict[KeyPath, Origin]
"""Origins of all keys and list items of files and overrides, sections included."""


def nearest_origin(origins: Origins, path: KeyPath) -> Origin:
    """Return the origin of `path`, or of the innermost section around it that has one."""
    found = (origins[path[:length]] for length in range(len(path), -1, -1) if path[:length] in origins)
    return next(found, DEFAULT)


def dotted(path: KeyPath) -> str:
    """Return the path as it is typed: `data.train.0.src`."""
    return ".".join(map(str, path))


DEEPEST = 30
"""Levels of sections, lists and keys; a config has 6."""
MOST_VALUES = 100_000
"""Values of a document; aliases of aliases are more than any memory holds."""
TOO_LARGE = f"nested more than {DEEPEST} levels deep, or more than {MOST_VALUES:,} values, aliases counted"
_TAG = "tag:yaml.org,2002:"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
_PLAIN = [
    # Tag, pattern, and possible first characters; the first match counts, everything else is text.
    (_TAG + "null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    (_TAG + "bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    (_TAG + "int", r"[-+]?[0-9]+(?:_[0-9]+)*$", list("-+0123456789")),
    (_TAG + "float", _FLOAT, list("-+.0123456789")),
]
_MAKE: dict[str, Callable[[str], Any]] = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": lambda text: text.lower() == "true",
    _TAG + "int": int,
    _TAG + "float": lambda text: float(re.sub(r"\.(inf|nan)", r"\1", text.lower())),
    _TAG + "str": str,
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that this loader or one of YAML 1.1 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def list_node(self, data: list[Any] | tuple[Any, ...]) -> yaml.Node:
        """Write a list of scalars in one line."""
        in_one_line = not any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence(_TAG + "seq", data, flow_style=in_one_line)

    def text_node(self, data: str) -> yaml.Node:
        """Write a text in one line, so that a comment can follow it."""
        return self.represent_scalar(_TAG + "str", data, style='"' if data.splitlines() != [data] else None)


_Loader.yaml_implicit_resolvers = {}
_Dumper.add_representer(list, _Dumper.list_node)
_Dumper.add_representer(tuple, _Dumper.list_node)
_Dumper.add_representer(str, _Dumper.text_node)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def write_yaml(value: Any) -> str:
    """Return `value` as YAML that `read_yaml` reads back to the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def read_yaml(text: str, origin: Callable[[int | None], Origin], top: KeyPath = ()) -> tuple[Any, Origins]:
    """Return the value of one YAML document, and the origins of its keys and list items.

    Args:
        text: the document.
        origin: (line, from 1) -> the origin of a value on that line.
        top: path of the whole value.

    Raises:
        ConfigError: if the text is not YAML, or a key occurs twice in one mapping.
    """
    reader = _Reader(origin)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except RecursionError as error:
        raise ConfigError(f"{origin(None)}: {TOO_LARGE}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(f"{origin(line)}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{origin(line)}: not valid YAML: {error.reason}") from error
    value = None if root is None else reader.value(root, top)
    if reader.errors:
        raise ConfigError("\n".join(reader.errors))
    return value, reader.origins


class _Reader:
    """Converts nodes to values, and collects origins and errors."""

    def __init__(self, origin: Callable[[int | None], Origin]) -> None:
        self.origin = origin
        self.origins: Origins = {}
        self.errors: list[str] = []
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if any(node is outer for outer in self._open):
            return self._error(node, path, "an alias inside its own value")
        if len(self._open) > DEEPEST or len(self.origins) > MOST_VALUES:
            raise ConfigError(f"{self.origin(node.start_mark.line + 1)}: {TOO_LARGE}")
        if isinstance(node, yaml.ScalarNode):
            try:
                return _MAKE[node.tag](node.value)
            except (KeyError, ValueError):
                return self._error(node, path, f"{node.value!r:.60} cannot be read as {node.tag.removeprefix(_TAG)}")
        self._open.append(node)
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = {key.value: self._below(item, key, (*path, key.value)) for key, item in self._pairs(node, path)}
        else:
            value = [self._below(item, item, (*path, index)) for index, item in enumerate(node.value)]
        self._open.pop()
        return value

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the keys and values of a mapping, except those of a key that is not a word or occurred before."""
        lines: dict[str, int] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._error(key, path, "a key must be one word")
            elif key.value in lines:
                self._error(key, (*path, key.value), f"this key occurs twice (first in line {lines[key.value]})")
            else:
                lines[key.value] = key.start_mark.line + 1
                yield key, item

    def _below(self, node: yaml.Node, start: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a key or list item, which begins at the node `start`."""
        self.origins[path] = self.origin(start.start_mark.line + 1)
        return self.value(node, path)

    def _error(self, node: yaml.Node, path: KeyPath, what: str) -> None:
        where = f"{dotted(path)}: " if path else ""
        self.errors.append(f"{self.origin(node.start_mark.line + 1)}: {where}{what}")
