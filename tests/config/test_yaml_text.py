"""YAML scalars are parsed as in YAML 1.2, line numbers of keys are recorded, and written values are read back."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mtformer.config.yaml_text import Origin, read_yaml, write_yaml
from mtformer.errors import ConfigError


def read(text: str) -> Any:
    return read_yaml(text, lambda line: Origin("file", "x.yaml", line))[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2.5E+3", -2500.0),
        (".5", 0.5),
        ("7.", 7.0),
        ("010", 10),
        ("60_000", 60000),
        ("+3", 3),
        ("no", "no"),
        ("NO", "NO"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2016-01-01", "2016-01-01"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("1e", "1e"),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("{no: 1, 2016: 2}", {"no": 1, "2016": 2}),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    found = read(text)
    assert found == value
    assert type(found) is type(value)


def test_infinity_and_nan() -> None:
    assert read("-.inf") == -math.inf
    assert math.isnan(read(".nan"))


TEXTS = [
    *("no", "on", "1e-4", "1e5", ".5", "010", "0x1f", "1:30", "2016-01-01", "null", "~", "", " a ", "a: b", "a # b"),
    *("- a", "a\nb", "\n", "tab\there", "true\n", "\x85", "\u2028", "\ufeff", "\U0001f600", "@a", "=", "<<", "!x"),
    *("&a", "*a", "{a}", "[a]", "|", ">", "?", "x" * 500, "a b " * 100, "60_000", "\udc80", "\x00"),
]
texts = st.text(st.characters(exclude_categories=[])) | st.text("01e-.+_:# nofyts~\n\t'\"[]{},&*!|>%@`é日\u2028")


@given(st.lists(texts))
@example(TEXTS)
def test_strings_are_read_back(texts: list[str]) -> None:
    value = {"texts": texts, **{f"k{index}": text for index, text in enumerate(texts)}}
    assert read(write_yaml(value)) == value


def test_a_long_list_is_written_on_one_line() -> None:
    assert write_yaml({"symbols": [f"<{n}>" for n in range(3000)]}).count("\n") == 1


def test_other_values_are_read_back() -> None:
    value = {"a": [1, 1e-9, 1e300, True, None, []], "b": {}, "c": {"no": [{"x": 0.1}, {"x": -3}]}, "10": 12345.678}
    assert read(write_yaml(value)) == value


def test_yaml_1_1_loaders_read_strings_as_strings() -> None:
    value = {"lang": "no", "name": "1e-4", "day": "2016-01-01", "rate": 1e-9}
    assert yaml.safe_load(write_yaml(value)) == value


def test_keys_and_items_have_line_numbers() -> None:
    text = "a: 1\nb:\n  c:\n  - x\n  - d: 2\n\n    e: [3]\n"
    _, origins = read_yaml(text, lambda line: Origin("file", line=line))
    assert {path: origin.line for path, origin in origins.items()} == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "c", 1, "d"): 5,
        ("b", "c", 1, "e"): 7,
        ("b", "c", 1, "e", 0): 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "x.yaml:4: a.b: this key occurs twice (first on line 2)"),
        ("a: 1\nb: [1, 2\nc: 3\n", "x.yaml:3: not valid YAML:"),
        ("a: 1\n\tb: 2\n", "x.yaml:2: not valid YAML:"),
        ("a: b: c\n", "x.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: \x07\n", "x.yaml:2: not valid YAML: special characters are not allowed"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: not valid YAML:"),
        ("a: &x\n  b: *x\n", "x.yaml:1: nested more than 30 levels deep"),
        ("a:\n  ? [1]\n  : 2\n", "x.yaml:2: a: a key must be a single word or number"),
        ("a: !!python/name:os.system x\n", "x.yaml:1: a: 'x' cannot be read as"),
        ("a: !!int x\n", "x.yaml:1: a: 'x' cannot be read as int"),
        ("a: *nothing\n", "x.yaml:1: not valid YAML:"),
    ],
)
def test_errors_are_one_line_with_the_location(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
