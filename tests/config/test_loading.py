"""Files, `extends` and overrides are merged into one config with the origin of each value."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mtformer.config.data import HubDataset, TextFiles, TsvFile
from mtformer.config.loading import Origin, config_diff, dump_config, load_config, with_overrides
from mtformer.config.schema import TokenizerConfig
from mtformer.errors import ConfigError

Write = Callable[[str, str], str]

BASE = """\
data:
  src_lang: no
  tgt_lang: de
  train:
  - {src: a.no, tgt: a.de}
  - {dataset: some/set, name: no-de}
  test:
    news: {dataset: some/set, split: test, src_field: no}
training:
  learning_rate: 1e-4
  betas: [0.9, 0.99]
"""


def error_of(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_values_and_their_origins(write: Write) -> None:
    loaded = load_config(write("configs/base.yaml", BASE), ["training.max_steps=5"])
    assert loaded.config.data.src_lang == "no"
    assert loaded.config.training.learning_rate == 1e-4
    assert loaded.config.training.betas == (0.9, 0.99)
    assert loaded.config.training.max_steps == 5
    assert loaded.origins["data.train.0.tgt"] == Origin("file", "configs/base.yaml", 5)
    assert loaded.origins["training.betas"] == Origin("file", "configs/base.yaml", 11)
    assert loaded.origins["training.max_steps"] == Origin("override", "training.max_steps=5")
    assert loaded.origins["data.train.1.split"] == loaded.origins["model.d_model"] == Origin("default")


def test_extends_merges_sections_and_replaces_lists(write: Write) -> None:
    write("shared/base.yaml", BASE)
    write("middle.yaml", "extends: shared/base.yaml\nmodel: {d_model: 64, num_heads: 4}\n")
    top = write(
        "mine/top.yaml",
        "extends: ../middle.yaml\nmodel:\n  num_heads: 2\ndata:\n  train:\n  - {src: b.no, tgt: b.de}\n",
    )
    loaded = load_config(top)
    assert (loaded.config.model.d_model, loaded.config.model.num_heads) == (64, 2)
    assert loaded.config.data.train == [TextFiles(src="b.no", tgt="b.de")]
    assert loaded.config.data.tgt_lang == "de"
    assert loaded.origins["model.num_heads"] == Origin("file", "mine/top.yaml", 3)
    assert loaded.origins["model.d_model"] == Origin("file", "middle.yaml", 2)
    assert loaded.origins["data.tgt_lang"] == Origin("file", os.path.normpath("shared/base.yaml"), 3)


def test_extends_follows_the_links_of_folders_like_other_programs(write: Write) -> None:
    write("base.yaml", BASE)
    write("real/base.yaml", BASE.replace("tgt_lang: de", "tgt_lang: nl"))
    write("real/configs/a.yaml", "extends: ../base.yaml\n")
    Path("configs").symlink_to("real/configs")
    loaded = load_config("configs/a.yaml")
    assert loaded.config.data.tgt_lang == "nl"
    assert loaded.origins["data.tgt_lang"] == Origin("file", "configs/../base.yaml", 3)


def test_circular_extends_is_an_error(write: Write) -> None:
    write("a.yaml", "model: {}\nextends: sub/b.yaml\n")
    write("sub/b.yaml", "extends: ../a.yaml\n")
    assert (
        error_of("a.yaml")
        == "sub/b.yaml:1: extends: circular reference: a.yaml -> sub/b.yaml -> a.yaml; remove one extends"
    )


def test_extending_a_missing_file_is_an_error(write: Write) -> None:
    path = write("configs/a.yaml", "extends: nothing.yaml\n")
    assert error_of(path).startswith("configs/a.yaml:1: extends: no such file: configs/nothing.yaml")
    assert error_of(write("b.yaml", "extends: [a.yaml]\n")).startswith(
        "b.yaml:1: extends: must be the name of one file"
    )


def test_sections_with_all_keys_commented_out_are_empty(write: Write) -> None:
    base = write("base.yaml", BASE)
    config = load_config(write("a.yaml", f"extends: {base}\ntraining:\n  # seed: 3\ndata:\n  train:\n  test:\n")).config
    assert config.training.learning_rate == 1e-4
    assert config.data.train == []
    assert config.data.test == {}


def test_overrides_replace_and_append_sources(write: Write) -> None:
    path = write("a.yaml", BASE)
    overrides = ["data.train.1.src=b.no", "data.train.1.tgt=b.de", "data.train.2.tsv=c.tsv", "data.dev.0.dataset=d"]
    data = load_config(path, overrides).config.data
    files = TextFiles(src="b.no", tgt="b.de")
    assert data.train == [TextFiles(src="a.no", tgt="a.de"), files, TsvFile(tsv="c.tsv")]
    assert data.dev == [HubDataset(dataset="d")]
    reverse = [
        "data.train.0.src_lang=de",
        "data.train.0.tgt_lang=no",
        "data.train.0.tsv=c.tsv",
        "data.language_tags=source",
    ]
    assert load_config(path, reverse).config.data.train[0] == TsvFile(tsv="c.tsv", src_lang="de", tgt_lang="no")


@pytest.mark.parametrize("order", [1, -1])
def test_local_files_replace_a_dataset(write: Write, order: int) -> None:
    overrides = ["data.test.news.src=n.no", "data.test.news.tgt=n.de"][::order]
    loaded = load_config(write("a.yaml", BASE), overrides)
    assert loaded.config.data.test == {"news": TextFiles(src="n.no", tgt="n.de")}
    assert loaded.origins["data.test.news.src"].kind == "override"
    top = write("b.yaml", "extends: a.yaml\ndata: {test: {news: {tsv: n.tsv}}}\n")
    assert load_config(top).config.data.test == {"news": TsvFile(tsv="n.tsv")}


def test_override_values_are_yaml(write: Write) -> None:
    overrides = [
        "training.betas=[0.8, 0.9]",
        "training.betas.1=1e-1",
        "data.tgt_lang=no",
        "model={d_model: 64, num_heads: 2}",
        "model.num_heads=4",
        "data.train=[{tsv: a=b.tsv}]",
        "data.test={}",
        "training.patience=",
        "tokenizer.user_symbols=[<2no>]",
    ]
    loaded = load_config(write("a.yaml", BASE + "  patience: 3\n"), overrides)
    config = loaded.config
    assert config.training.betas == (0.8, 0.1)
    assert (config.data.tgt_lang, config.data.test, config.training.patience) == ("no", {}, None)
    assert (config.model.d_model, config.model.num_heads) == (64, 4)
    assert config.data.train == [TsvFile(tsv="a=b.tsv")]
    assert config.tokenizer.user_symbols == ["<2no>"]
    assert loaded.origins["training.betas"].name == "training.betas.1=1e-1"
    assert loaded.origins["model.num_heads"].name == "model.num_heads=4"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.max_steps", "write section.key=value"),
        ("=5", "write section.key=value"),
        ("training..seed=5", "write section.key=value"),
        ("training.seed.x=5", "training.seed is a single value and has no key 'x'"),
        (
            "data.train.3.tsv=x",
            "data.train is a list of 2 items; '3' is neither the index of an item (from 0) nor the next index",
        ),
        (
            "data.train.src=x",
            "data.train is a list of 2 items; 'src' is neither the index of an item (from 0) nor the next index",
        ),
        ("data.train=[x", "not valid YAML: "),
        ("model.num_head=4", "model.num_head: unknown key; did you mean 'num_heads'? allowed: d_model, num_heads, "),
        ("max_steps=4", "max_steps: unknown key; did you mean 'training.max_steps'? allowed: data, "),
    ],
)
def test_errors_in_overrides_name_the_override(write: Write, override: str, message: str) -> None:
    path = write("a.yaml", BASE + "  seed: 1\n")
    assert error_of(path, override).startswith(f"override '{override}': {message}")


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    write("x/y", "")
    assert error_of("nothing.yaml") == "nothing.yaml: no such config file; check the path"
    assert error_of("x") == "x: is a folder; a config must be a YAML file"
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: ü\n".encode("latin-1"))
    assert error_of("latin.yaml") == "latin.yaml:2: not UTF-8; save the file as UTF-8"
    assert error_of(write("list.yaml", "- a\n")).startswith("list.yaml:1: a config is a mapping of sections")
    assert error_of(write("empty.yaml", "")) == "empty.yaml: data: is missing; set it"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BASE, encoding="utf-8-sig")
    assert load_config(tmp_path / "a.yaml").config.data.src_lang == "no"


CORPORA = "corpora: {bt: {sources: [{tsv: b.tsv}]}, old: {sources: [{tsv: o.tsv}]}}"


@pytest.mark.parametrize("by_override", [False, True])
def test_null_removes_a_test_set_or_corpus_of_the_extended_file(by_override: bool, write: Write) -> None:
    tests = "test: {news: {tsv: n.tsv}, talks: {tsv: t.tsv}}"
    base = write("a.yaml", f"data: {{src_lang: en, tgt_lang: de, {tests}, {CORPORA}}}\n")
    if by_override:
        loaded = load_config(base, ["data.test.news=null", "data.corpora.old=", "data.test.more={tsv: m.tsv}"])
    else:
        top = "extends: a.yaml\ndata: {test: {news: null, more: {tsv: m.tsv}}, corpora: {old: null}}\n"
        loaded = load_config(write("b.yaml", top))
    assert list(loaded.config.data.test) == ["talks", "more"]
    assert list(loaded.config.data.corpora) == ["bt"]
    files = [name for name in loaded.origins if name.endswith(".tsv")]
    assert files == ["data.corpora.bt.sources.0.tsv", "data.test.talks.tsv", "data.test.more.tsv"]


def test_null_for_a_missing_test_set_or_corpus_is_an_error(write: Write) -> None:
    write("a.yaml", "data: {src_lang: en, tgt_lang: de, test: {news: {tsv: n.tsv}}}\n")
    top = write("b.yaml", "extends: a.yaml\ndata: {test: {new: null}, corpora: {old: null}}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(top)
    corpora, tests = str(raised.value).splitlines()
    assert "b.yaml:2: data.corpora.old.sources: is missing" in corpora
    assert "b.yaml:2: data.test.new: a source is a mapping with" in tests


DEV_SETS = "data: {src_lang: en, tgt_lang: de, dev: {news: {tsv: n.tsv}, talks: {src: t.en, tgt: t.de}}}\n"
TWO_SETS = {"news": TsvFile(tsv="n.tsv"), "talks": TextFiles(src="t.en", tgt="t.de")}


@pytest.mark.parametrize(
    ("top", "overrides", "expected"),
    [
        ("", [], TWO_SETS),
        ("", ["data.dev.news.tsv=x.tsv", "data.dev.talks="], {"news": TsvFile(tsv="x.tsv")}),
        ("", ["data.dev.more.tsv=m.tsv"], {**TWO_SETS, "more": TsvFile(tsv="m.tsv")}),
        ("", ["data.dev.0.tsv=m.tsv"], {**TWO_SETS, "0": TsvFile(tsv="m.tsv")}),
        ("", ["data.dev=[{tsv: x.tsv}]"], [TsvFile(tsv="x.tsv")]),
        ("", ["data.dev=[{tsv: x.tsv}]", "data.dev.1.tsv=y.tsv"], [TsvFile(tsv="x.tsv"), TsvFile(tsv="y.tsv")]),
        ("data: {dev: [{tsv: x.tsv}]}\n", [], [TsvFile(tsv="x.tsv")]),
        ("data: {dev: [{tsv: x.tsv}]}\n", ["data.dev={a: {tsv: a.tsv}}"], {"a": TsvFile(tsv="a.tsv")}),
        ("data: {dev: }\n", [], []),
        ("data: {dev: }\n", ["data.dev.0.tsv=x.tsv"], [TsvFile(tsv="x.tsv")]),
        ("data: {dev: {}}\n", ["data.dev.a.tsv=x.tsv"], {"a": TsvFile(tsv="x.tsv")}),
        ("data: {dev: {news: null, talks: {tsv: y.tsv}}}\n", [], {"talks": TsvFile(tsv="y.tsv")}),
    ],
)
def test_dev_is_a_list_or_a_mapping(write: Write, top: str, overrides: list[str], expected: object) -> None:
    write("base.yaml", DEV_SETS)
    loaded = load_config(write("a.yaml", f"extends: base.yaml\n{top}"), overrides)
    assert loaded.config.data.dev == expected
    again = load_config(write("b.yaml", dump_config(loaded.config))).config
    assert again == loaded.config
    assert config_diff(loaded.config, again) == []


def test_an_override_creates_a_list_or_a_mapping_of_dev_sets(write: Write) -> None:
    path = write("a.yaml", "data: {src_lang: en, tgt_lang: de}\n")
    assert load_config(path, ["data.dev.0.tsv=x.tsv"]).config.data.dev == [TsvFile(tsv="x.tsv")]
    assert load_config(path, ["data.dev.news.tsv=x.tsv"]).config.data.dev == {"news": TsvFile(tsv="x.tsv")}
    write("b.yaml", "data: {src_lang: en, tgt_lang: de, dev: [{tsv: x.tsv}]}\n")
    assert error_of("b.yaml", "data.dev.news.tsv=x.tsv").startswith(
        "override 'data.dev.news.tsv=x.tsv': data.dev is a list of 1 items; 'news' is neither the index"
    )


@pytest.mark.parametrize(("value", "is_on"), [("0.0", False), ("0.1", True)])
def test_keys_of_earlier_versions_are_ignored_only_in_saved_configs(
    value: str, is_on: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, text = (
        tmp_path / "config.yaml",
        f"data: {{src_lang: en, tgt_lang: de}}\ntokenizer: {{sampling_alpha: {value}}}\n",
    )
    path.write_text(text)
    message = r"config\.yaml:2: tokenizer\.sampling_alpha: unknown key; only earlier versions of mtformer have it"
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    path.write_text(f"format: 1\n{text}")
    saved = yaml.safe_load(dump_config(load_config(path).config))
    assert saved["tokenizer"] == TokenizerConfig().model_dump(mode="json")
    warning = f"{path}: sampling_alpha is not supported anymore and is ignored"
    assert [record.message for record in caplog.records] == [warning] * is_on


def test_earlier_names_are_read_only_from_saved_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = "data: {src_lang: en, tgt_lang: de}\ndecoding: {batch_tokens: 77}\n"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    explanation = "earlier versions of mtformer call beam_tokens by this name; write beam_tokens"
    assert str(error.value) == f"{path}:2: decoding.batch_tokens: unknown key; {explanation}"

    path.write_text(f"format: 1\n{text.replace('77', 'x')}")
    with pytest.raises(ConfigError, match=f"^{path}:3: decoding.beam_tokens: must be "):
        load_config(path)

    path.write_text(f"format: 1\n{text}")
    loaded = load_config(path)
    assert loaded.config.decoding.beam_tokens == 77
    assert str(loaded.origins["decoding.beam_tokens"]) == f"{path}:3"
    assert load_config(path, ["decoding.beam_tokens=78"]).config.decoding.beam_tokens == 78


def test_values_are_replaced_without_merging_mappings(write: Write) -> None:
    config = load_config(write("a.yaml", BASE)).config
    assert config.with_values({}) == config
    changed = config.with_values(
        {
            "training.learning_rate": 0.5,
            "training.betas.1": 0.1,
            "data.train.1.tsv": "c.tsv",
            "data.train.2.src": "d.no",
            "data.train.2.tgt": "d.de",
            "data.test": {"new": {"tsv": "n.tsv"}},
            "data.dev": {"old": TsvFile(tsv="o.tsv"), "new": {"tsv": "n.tsv"}},
            "tokenizer.user_symbols": ["<a>"],
        }
    )
    assert changed.training.learning_rate == 0.5
    assert changed.training.betas == (0.9, 0.1)
    added = TextFiles(src="d.no", tgt="d.de")
    assert changed.data.train == [TextFiles(src="a.no", tgt="a.de"), TsvFile(tsv="c.tsv"), added]
    assert changed.data.test == {"new": TsvFile(tsv="n.tsv")}
    assert changed.data.dev == {"old": TsvFile(tsv="o.tsv"), "new": TsvFile(tsv="n.tsv")}
    assert changed.tokenizer.user_symbols == ["<a>"]
    assert changed.model == config.model
    assert config.training.learning_rate == 1e-4


def test_null_empties_a_section_and_removes_a_named_item(write: Write) -> None:
    config = load_config(write("a.yaml", BASE)).config
    assert config.with_values({"data.test.news": None}).data.test == {}
    assert config.with_values({"data.test": None, "data.train": None}).data.sources == []
    assert config.with_values({"training.patience": 3}).with_values({"training.patience": None}) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training.learning_rate": -1}, "changed value: training.learning_rate: must be above 0, not -1"),
        (
            {"training.learning_rat": 1.0},
            "changed value: training.learning_rat: unknown key; did you mean 'learning_rate'?",
        ),
        ({"training.seed": "3"}, "changed value: training.seed: must be a whole number of at least 0, not '3'"),
        ({"training.seed.x": 3}, "changed value: training.seed is a single value and has no key 'x'"),
        ({"data.train.5.src": "x"}, "changed value: data.train is a list of 2 items; '5' is neither the index"),
        ({"training.average_last": 9}, "changed value: training.average_last: average_last 9 is above keep_last 5"),
        ({"data.train.0.src": "a\0"}, "changed value: data.train.0.src: 'a\\x00': not UTF-8 text"),
    ],
)
def test_changed_values_are_validated_like_a_file(write: Write, values: dict[str, object], message: str) -> None:
    config = load_config(write("a.yaml", BASE)).config
    with pytest.raises(ConfigError) as caught:
        config.with_values(values)
    assert str(caught.value).startswith(message)


def test_overrides_of_a_config_are_merged_like_those_of_a_file(write: Write) -> None:
    path = write("a.yaml", BASE)
    config = load_config(path).config
    overrides = ["training={seed: 3}", "data.train.0={tsv: c.tsv}", "training.seed=4"]
    changed = with_overrides(config, overrides)
    assert changed == load_config(path, overrides).config
    assert changed.training.seed == 4
    assert changed.training.learning_rate == config.training.learning_rate
    assert changed.data.train[0] == TsvFile(tsv="c.tsv")
    with pytest.raises(
        ConfigError, match=r"^override 'training.sed=1': training.sed: unknown key; did you mean 'seed'"
    ):
        with_overrides(config, ["training.sed=1"])


def test_a_shipped_config_is_found_from_any_folder_unless_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_config("configs/kftt_ja_en_small.yaml")  # extends another one
    assert (loaded.config.data.src_lang, loaded.config.model.d_model) == ("ja", 256)
    assert str(loaded.origins["model.d_model"]).endswith("configs/kftt_ja_en_small.yaml:7")
    with pytest.raises(ConfigError, match=r"^configs/missing\.yaml: no such config file"):
        load_config("configs/missing.yaml")
    with pytest.raises(ConfigError, match=r"^other/demo\.yaml: no such config file"):
        load_config("other/demo.yaml")

    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "demo.yaml").write_text("data: {src_lang: sw, tgt_lang: ta}\n")
    assert load_config("configs/demo.yaml").config.data.src_lang == "sw"
