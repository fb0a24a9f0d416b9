"""The names and parameters in the tables of docs/python.md exist in the package."""

import importlib
import inspect
import re

import pytest
from pages import ROOT

import mtformer

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE)
CALLS = re.findall(r"^\| `([\w.]+)\((.*?)\) -> ", TEXT, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_exists(name: str) -> None:
    assert inspect.isclass(getattr(mtformer, name))


@pytest.mark.parametrize(("path", "parameters"), CALLS, ids=[path for path, _ in CALLS])
def test_a_public_function_has_these_parameters(path: str, parameters: str) -> None:
    parts = path.split(".")
    if parts[0] == "mtformer":
        function = getattr(importlib.import_module(".".join(parts[:-1])), parts[-1])
    else:
        function = getattr(getattr(mtformer, parts[0]), parts[1])
    named = re.findall(r"(\w+)(?:: \w+)?(?:=[^,]*)?(?:, |$)", parameters.replace("()", "tuple"))
    known = inspect.signature(function).parameters
    assert len(named) == parameters.count(", ") + 1 - parameters.count("*, ")
    assert [name for name in named if name not in known] == []


def test_the_tables_are_found() -> None:
    assert len(NAMES) >= 5
    assert len(CALLS) >= 11
