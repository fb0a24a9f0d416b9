"""YAML text to plain values that know their lines, and back.

Scalars mean what YAML 1.2 says: only `true` and `false` are booleans (the language code `no` is text), `1e-4` is a
number, `010` is ten, and there are no dates. Beyond YAML 1.2, `60_000` is a number. Keys are always text.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from mtformer.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a config, such as ("data", "train", 0, "src")."""
NoteLine = Callable[[KeyPath, int], None]
"""Called with every key and list item and the line, from 1, that it stands in."""

_TAG = "tag:yaml.org,2002:"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
_PLAIN: list[tuple[str, re.Pattern[str], list[str]]] = [
    # Tag, what is read as it, and the characters that it may begin with; the first that fits counts, else it is text.
    (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_TAG + "int", re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*$"), list("-+0123456789")),
    (_TAG + "float", re.compile(_FLOAT), list("-+.0123456789")),
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
    """Quotes every text that this loader or one of YAML 1.1 would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def list_node(self, data: list[Any] | tuple[Any, ...]) -> yaml.Node:
        """Lists of scalars stand in one line."""
        in_one_line = not any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence(_TAG + "seq", data, flow_style=in_one_line)

    def text_node(self, data: str) -> yaml.Node:
        """Each value stands in one line, so that a comment can follow it."""
        return self.represent_scalar(_TAG + "str", data, style='"' if data.splitlines() != [data] else None)


_Loader.yaml_implicit_resolvers = {}
_Dumper.add_representer(list, _Dumper.list_node)
_Dumper.add_representer(tuple, _Dumper.list_node)
_Dumper.add_representer(str, _Dumper.text_node)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def write_yaml(value: Any) -> str:
    """`value` as YAML that `read_yaml` reads back to the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def read_yaml(text: str, place: Callable[[int | None], str], note: NoteLine, top: KeyPath = ()) -> Any:
    """The value that `text` holds.

    Args:
        text: One YAML document.
        place: Gives the name of a place, for messages, from its line (from 1).
        note: Called for every key and list item.
        top: The path of the whole value, which `note` and messages begin with.

    Raises:
        ConfigError: The text is no YAML, or a key stands twice in one mapping.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(f"{place(line)}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{place(line)}: not valid YAML: {error.reason}") from error
    reader = _Reader(place, note)
    value = None if root is None else reader.value(root, top)
    if reader.mistakes:
        raise ConfigError("\n".join(reader.mistakes))
    return value


class _Reader:
    """Makes values of nodes; collects what is wrong."""

    def __init__(self, place: Callable[[int | None], str], note: NoteLine) -> None:
        self.place = place
        self.note = note
        self.mistakes: list[str] = []
        self._open: list[int] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if id(node) in self._open:
            self._mistake(node, path, "an alias that holds itself")
            return None
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._mistake(key_node, path, "a key must be one word")
                continue
            key = key_node.value
            if key in values:
                self._mistake(key_node, (*path, key), f"this key stands twice (first in line {lines[key]})")
                continue
            lines[key] = line
            self.note((*path, key), line)
            values[key] = self.value(value_node, (*path, key))
        return values

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self.note((*path, index), item.start_mark.line + 1)
            values.append(self.value(item, (*path, index)))
        return values

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        try:
            return _MAKE[node.tag](node.value)
        except (KeyError, ValueError):
            self._mistake(node, path, f"'{node.value}' cannot be read as {node.tag.removeprefix(_TAG)}")
            return None

    def _mistake(self, node: yaml.Node, path: KeyPath, what: str) -> None:
        where = f"{dotted(path)}: " if path else ""
        self.mistakes.append(f"{self.place(node.start_mark.line + 1)}: {where}{what}")


def dotted(path: KeyPath) -> str:
    """The path as it is typed: `data.train.0.src`."""
    return ".".join(map(str, path))
