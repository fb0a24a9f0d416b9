"""All files, functions and config keys mentioned in the README and docs exist."""

import ast
import re
from pathlib import Path

import pytest

from mtformer.config.fields import section_keys
from mtformer.config.yaml_text import dotted

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(r"`((?:mtformer|tests|scripts|configs|docs)/[\w./-]+)`")
KEY = re.compile(r"`((?:data|tokenizer|model|training|decoding|evaluation)\.[a-z_.]+)(?:[:=][^`]*)?`")
ROW = re.compile(r"^\| [^|]+ \| `(mtformer/[\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_exist(document: Path) -> None:
    named = PATH.findall(document.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_config_keys_exist(document: Path) -> None:
    known = {dotted(key) for key in section_keys()}
    named = {key for key in KEY.findall(document.read_text(encoding="utf-8")) if not key.startswith("data.corpora.")}
    assert named - known == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_functions_exist(document: Path) -> None:
    missing = []
    for path, name in ROW.findall(document.read_text(encoding="utf-8")):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        if not any(getattr(node, "name", None) == name for node in ast.walk(tree)):
            missing.append(f"{path}: {name}")
    assert missing == []


def test_the_architecture_page_names_many_functions() -> None:
    assert len(ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))) > 30
