"""A dumped config is the same config; its paths hold anywhere; its schema knows every key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mtformer.config.data import SOURCES, CorpusConfig, WeightChange
from mtformer.config.fields import fields, section_keys
from mtformer.config.loading import config_diff, dump_config, json_schema, key_lines, load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.config.section import Section
from mtformer.config.yaml_text import dotted

Write = Callable[[str, str], str]

FULL = """\
data:
  src_lang: no
  tgt_lang: sr-Latn
  train:
  - {src: 'a: b.no', tgt: "new\\nline"}
  - {tsv: ~/x.tsv, tgt_column: 5}
  - {jsonl: "1e-4"}
  dev:
  - {dataset: here, name: "null"}
  - {dataset: some/hub, split: "train[:10]"}
  test:
    "2016": {tsv: t.tsv.gz}
  cache_dir: cache
tokenizer: {user_symbols: ["<2no>", "yes", "[x]"], src_model: m.model}
training: {eps: 1.0e-12, betas: [0, 0.999], patience: 4, max_epochs: null}
"""


def test_a_dumped_config_is_read_back(write: Write) -> None:
    config = load_config(write("a.yaml", FULL)).config
    again = load_config(write("b.yaml", dump_config(config)))
    assert again.config == config
    # It holds every value, so that later defaults change nothing.
    assert {origin.kind for origin in again.origins.values()} == {"file"}


def test_each_value_of_a_dumped_config_has_a_line_of_its_own(write: Write) -> None:
    loaded = load_config(write("a.yaml", FULL))
    text = dump_config(loaded.config)
    lines = {dotted(path): line for line, path in key_lines(text).items()}
    numbers = [lines[key] for key in loaded.origins]
    assert len(set(numbers)) == len(numbers)
    for key in loaded.origins:
        assert f"{key.split('.')[-1].strip()}" in text.split("\n")[lines[key] - 1]


def test_paths_hold_in_another_folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = write("a.yaml", FULL)
    (tmp_path / "here").mkdir()
    resolved = resolve_paths(load_config(path).config)
    assert resolved.data.train[0].model_dump(exclude_none=True) == {
        "src": f"{tmp_path}/a: b.no",
        "tgt": f"{tmp_path}/new\nline",
    }
    assert resolved.data.train[1].model_dump()["tsv"] == "/home/me/x.tsv"
    assert resolved.data.train[2].model_dump()["jsonl"] == f"{tmp_path}/1e-4"
    assert [source.model_dump()["dataset"] for source in resolved.data.dev] == [f"{tmp_path}/here", "some/hub"]
    assert resolved.data.test["2016"].model_dump()["tsv"] == f"{tmp_path}/t.tsv.gz"
    assert resolved.data.cache_dir == f"{tmp_path}/cache"
    assert (resolved.tokenizer.src_model, resolved.tokenizer.tgt_model) == (f"{tmp_path}/m.model", None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resolve_paths(load_config(write("b.yaml", dump_config(resolved))).config) == resolved


def test_diff(write: Write) -> None:
    path = write("a.yaml", FULL)
    old = load_config(path).config
    assert config_diff(old, old) == []
    overrides = [
        "training.seed=3",
        "data.train.0.src=c",
        "data.dev=[]",
        "data.test.new.tsv=n",
        "tokenizer.user_symbols=[]",
    ]
    assert config_diff(old, load_config(path, overrides).config) == [
        ("data.train.0.src", "a: b.no", "c"),
        ("data.dev.0.dataset", "here", None),
        ("data.dev.0.name", "null", None),
        ("data.dev.0.split", "train", None),
        ("data.dev.0.stream", False, None),
        ("data.dev.1.dataset", "some/hub", None),
        ("data.dev.1.split", "train[:10]", None),
        ("data.dev.1.stream", False, None),
        ("tokenizer.user_symbols", ["<2no>", "yes", "[x]"], None),
        ("training.seed", 1, 3),
        ("data.test.new.tsv", None, "n"),
        ("data.test.new.src_column", None, 1),
        ("data.test.new.tgt_column", None, 2),
    ]


def test_the_schema_has_what_extends_and_test_sets_need() -> None:
    """Types, ranges and alternatives are those that pydantic writes."""
    schema = json_schema()
    assert schema["properties"]["extends"]["type"] == "string"
    sections = {"Config": schema, **schema["$defs"]}
    assert all(section["additionalProperties"] is False for section in sections.values())
    # Another file may have the other keys, except those of one source.
    required = {name: section["required"] for name, section in sections.items() if "required" in section}
    assert required == {
        "TextFiles": ["src", "tgt"],
        "TsvFile": ["tsv"],
        "JsonlFile": ["jsonl"],
        "HubDataset": ["dataset"],
    }
    test = schema["$defs"]["DataConfig"]["properties"]["test"]
    assert (list(test["patternProperties"]), test["additionalProperties"]) == (["^[A-Za-z0-9_-]+$"], False)


def test_every_key_is_described() -> None:
    sections: set[type[Section]] = {Config, CorpusConfig, WeightChange, *SOURCES.values()}
    for path in section_keys():
        parent: type[Section] = Config
        for key in path[:-1]:
            parent = fields(parent)[str(key)]
        sections.add(parent)
    assert len(sections) == 1 + 2 + 4 + 9
    missing = [(s.__name__, key) for s in sections for key, field in s.model_fields.items() if not field.description]
    assert missing == []
