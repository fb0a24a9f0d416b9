"""Read YAML and record the origin of each value; write YAML.

Scalars follow YAML 1.2: only `true` and `false` are booleans (the language code `no` is a string), `1e-4` is a number,
`010` is ten, and there are no dates. As an extension, `60_000` is a number. Keys are always strings.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from mtformer.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Path of a value in a config, as keys and list indices, such as ("data", "train", 0, "src")."""


@dataclass(frozen=True)
class Origin:
    """Origin of a value: the default, a file, an override, a change (see `Config.with_values`), or none.

    None, `required`, is that of a required key without a value.
    """

    kind: Literal["default", "required", "file", "override", "changed value"]
    name: str = ""
    """The file, or the override as typed."""
    line: int | None = None
    """Line number in the file, starting at 1."""

    def __str__(self) -> str:
        if self.kind == "override":
            return f"override '{self.name}'"
        if self.kind == "file":
            return self.name if self.line is None else f"{self.name}:{self.line}"
        return self.kind


DEFAULT = Origin("default")
"""Origin of a value that is not set."""
REQUIRED = Origin("required")
"""Origin of a required key without a value."""
CHANGED = Origin("changed value")
"""Origin of a value that a program sets."""
Origins = dict[KeyPath, Origin]
"""Origins of the keys (including sections) and list items that are set in files or overrides."""


def nearest_origin(origins: Origins, path: KeyPath) -> Origin:
    """Return the origin of `path`, or of the innermost enclosing section that has one."""
    for length in range(len(path), -1, -1):
        outer_path = path[:length]
        if outer_path in origins:
            return origins[outer_path]
    return DEFAULT


def dotted(path: KeyPath) -> str:
    """Return the path in dotted form, such as `data.train.0.src`."""
    return ".".join(map(str, path))


DEEPEST = 30
"""Maximum nesting depth; a config has 6 levels."""
MOST_VALUES = 100_000
"""Maximum number of values in a document; without it, nested aliases could expand to more than fits in memory."""
TOO_LARGE = (
    f"nested more than {DEEPEST} levels deep, or more than {MOST_VALUES:,} values, including aliases; make it smaller"
)
"""Problem in the error for a document that exceeds these limits."""
_TAG = "tag:yaml.org,2002:"
"""First part of the tags of YAML's types."""
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
"""Pattern of plain scalars that are numbers, including infinity and NaN."""
_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    _TAG + "null": (r"(?:~|null|Null|NULL|)$", lambda text: None),
    _TAG + "bool": (r"(?:true|True|TRUE|false|False|FALSE)$", lambda text: text.lower() == "true"),
    _TAG + "int": (r"[-+]?[0-9]+(?:_[0-9]+)*$", int),
    _TAG + "float": (_FLOAT, lambda text: float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))),
    _TAG + "str": ("", str),
}
"""Pattern and type of plain scalars by tag; the first pattern that matches applies."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 scalars."""


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes every string that `_Loader` or a YAML 1.1 loader would not read as a string."""

    def list_node(self, data: list[Any] | tuple[Any, ...]) -> yaml.Node:
        """Represent a list of scalars on one line."""
        is_nested = any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence(_TAG + "seq", data, flow_style=not is_nested)

    def text_node(self, data: str) -> yaml.Node:
        """Represent a string on one line, so that a comment can follow it."""
        is_one_line = data.splitlines() == [data]
        style = None if is_one_line else '"'
        return self.represent_scalar(_TAG + "str", data, style=style)


_Loader.yaml_implicit_resolvers = {}
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]  # repeated values are written in full
_Dumper.add_representer(list, _Dumper.list_node)
_Dumper.add_representer(tuple, _Dumper.list_node)
_Dumper.add_representer(str, _Dumper.text_node)
for _tag, (_pattern, _) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), None)
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), None)


def write_yaml(value: Any) -> str:
    """Return `value` as YAML; `read_yaml` restores the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)


def read_yaml(text: str, origin: Callable[[int | None], Origin], top: KeyPath = ()) -> tuple[Any, Origins]:
    """Parse a YAML document; return its value and the origins of its keys and list items.

    Args:
        text: the document.
        origin: function from a line number (starting at 1; None: unknown) to the origin of a value on that line.
        top: path of the top-level value.

    Raise ConfigError if the text is not valid YAML, or a key occurs twice in a mapping.
    """
    reader = _Reader(origin)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except RecursionError as error:
        raise ConfigError(f"{origin(None)}: {TOO_LARGE}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(
            f"{origin(line)}: not valid YAML: {error.problem}; check colons, brackets, quotes and indentation"
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{origin(line)}: not valid YAML: {error.reason}; remove them") from error

    value = None if root is None else reader.value(root, top)
    if reader.errors:
        raise ConfigError("\n".join(reader.errors))
    return value, reader.origins


class _Reader:
    """Converts YAML nodes to values, and collects origins and errors."""

    def __init__(self, origin: Callable[[int | None], Origin]) -> None:
        self.origin = origin
        self.origins: Origins = {}
        self.errors: list[str] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node; invalid scalars are added to `errors`."""
        if len(path) > DEEPEST or len(self.origins) > MOST_VALUES:
            raise ConfigError(f"{self.origin(_line(node))}: {TOO_LARGE}")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)

        items: list[Any] = []
        for index, item in enumerate(node.value):
            item_path = (*path, index)
            items.append(self._below(item, item, item_path))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, item in self._pairs(node, path):
            item_path = (*path, key.value)
            values[key.value] = self._below(item, key, item_path)
        return values

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """Return the value of a scalar; None, after adding an error, if its tag is unknown or does not fit."""
        try:
            _, convert = _SCALARS[node.tag]
            return convert(node.value)
        except (KeyError, ValueError):
            type_name = node.tag.removeprefix(_TAG)
            self._error(node, path, f"{node.value!r:.60} cannot be read as {type_name}; put it in quotes if it is text")
            return None

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the keys and values of a mapping; add an error for each key that is not a scalar or occurs twice."""
        lines: dict[str, int] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._error(key, path, "a key must be a single word or number, not a list or mapping")
                continue
            first_line = lines.get(key.value)
            if first_line is not None:
                problem = f"this key occurs twice (first on line {first_line}); remove one of both"
                self._error(key, (*path, key.value), problem)
                continue
            lines[key.value] = _line(key)
            yield key, item

    def _below(self, node: yaml.Node, start: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a key or list item that starts at the node `start`."""
        self.origins[path] = self.origin(_line(start))
        return self.value(node, path)

    def _error(self, node: yaml.Node, path: KeyPath, problem: str) -> None:
        origin = self.origin(_line(node))
        where = f"{dotted(path)}: " if path else ""
        self.errors.append(f"{origin}: {where}{problem}")


def _line(node: yaml.Node) -> int:
    """Return the number of the line on which a node starts."""
    line: int = node.start_mark.line + 1
    return line
