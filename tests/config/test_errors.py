"""Each config error is one line with the file and line number, the dotted path, the problem, and allowed values."""

from collections.abc import Callable

import pytest

from mtformer.config.loading import load_config
from mtformer.errors import ConfigError

Write = Callable[[str, str], str]

DATA = "data: {src_lang: en, tgt_lang: de}\n"
FORMS = "a source is a mapping with src and tgt (two text files), or tsv, or jsonl, or dataset (Hugging Face)"


def messages(path: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model:\n  num_head: 4\n",
            "3: model.num_head: unknown key; did you mean 'num_heads'? allowed: d_model, num_hea",
        ),
        ("model:\n  qqq: 4\n", "3: model.qqq: unknown key; allowed: d_model, num_heads, "),
        ("training:\n  d_model: 4\n", "3: training.d_model: unknown key; did you mean 'model.d_model'? allowed: seed,"),
        ("trainig:\n  seed: 4\n", "2: trainig: unknown key; did you mean 'training'? allowed: data, tokenizer, "),
        ("model:\n  dropout: 1.0\n", "3: model.dropout: must be at least 0 and below 1, not 1.0"),
        ("model:\n  dropout: .nan\n", "3: model.dropout: must be a finite number of at least 0 and below 1, not NaN"),
        ("model:\n  dropout: a lot\n", "3: model.dropout: must be a number of at least 0 and below 1, not 'a lot'"),
        ("model:\n  d_model: 0\n", "3: model.d_model: must be at least 1, not 0"),
        ("model:\n  d_model: '64'\n", "3: model.d_model: must be a whole number of at least 1, not '64'"),
        ("model:\n  d_model: 1e3\n", "3: model.d_model: must be a whole number of at least 1, not 1000.0; write 1000"),
        (
            "model:\n  norm: layrnorm\n",
            "3: model.norm: must be one of layernorm, rmsnorm, not 'layrnorm'; did you mean 'l",
        ),
        ("training:\n  sharded: no\n", "3: training.sharded: must be true or false, not 'no'"),
        ("training:\n  patience: 0\n", "3: training.patience: must be at least 1 or null, not 0"),
        ("training:\n  batch_tokens: 0\n", "3: training.batch_tokens: must be at least 1 or auto, not 0"),
        (
            "training:\n  batch_tokens: auto\n",
            "3: training.batch_tokens: batch_tokens: auto needs step_tokens, the number of tokens",
        ),
        (
            "training:\n  step_tokens: 100\n  accumulation_steps: 2\n",
            "3: training.step_tokens: step_tokens sets accumulation_steps; remove one of them",
        ),
        (
            "training:\n  max_minutes: 5\n  max_epochs: 2\n",
            "3: training.max_minutes: max_minutes and max_epochs cannot be combined; remove one of them",
        ),
        ("training:\n  max_minutes: 0\n", "3: training.max_minutes: must be above 0 or null, not 0"),
        ("training:\n  learning_rate: .inf\n", "3: training.learning_rate: must be a finite number above 0, not Inf"),
        ("training:\n  learning_rate: 0\n", "3: training.learning_rate: must be above 0, not 0"),
        ("training:\n  betas: 0.9\n", "3: training.betas: must be a list, not 0.9"),
        ("training:\n  betas:\n  - 0.9\n  - 1.0\n", "5: training.betas.1: must be at least 0 and below 1, not 1.0"),
        ("training:\n  betas: [0.1, 0.2, 0.3]\n", "3: training.betas: must be a list of 2 items, not [0.1, 0.2, 0.3]"),
        ("tokenizer:\n  src_model: 2016\n", "3: tokenizer.src_model: must be text or null, not 2016; put it in quotes"),
        ("tokenizer:\n  user_symbols: <a>\n", "3: tokenizer.user_symbols: must be a list, not '<a>'"),
        ("evaluation: 13a\n", "2: evaluation: must be a section (a mapping of keys to values), not '13a'"),
    ],
)
def test_one_error_of_each_kind(write: Write, text: str, message: str) -> None:
    (line,) = messages(write("configs/a.yaml", DATA + text))
    assert line.startswith(f"configs/a.yaml:{message}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{file: a}", f"train.0: {FORMS}; not " + '{"file": "a"}'),
        ("a.en", f"train.0: {FORMS}; not 'a.en'"),
        ("{src: a}", "train.0.tgt: is missing"),
        ("{src: a, tgt: b, split: train}", "train.0.split: unknown key; allowed: src_lang, tgt_lang, src, tgt"),
        (
            "{tsv: a, src_colum: 1}",
            "train.0.src_colum: unknown key; did you mean 'src_column'? allowed: src_lang, tgt_lang, tsv, src_column",
        ),
        ("{tsv: a, src_column: 0}", "train.0.src_column: must be at least 1, not 0"),
    ],
)
def test_sources(write: Write, source: str, message: str) -> None:
    path = write("a.yaml", f"data:\n  src_lang: en\n  tgt_lang: de\n  train:\n  - {source}\n")
    (line,) = messages(path)
    assert line.startswith(f"a.yaml:5: data.{message}")


def test_a_source_outside_a_list_is_an_error(write: Write) -> None:
    path = write("a.yaml", "data:\n  src_lang: en\n  tgt_lang: de\n  train:\n    src: a\n    tgt: b\n")
    (line,) = messages(path)
    assert line.startswith("a.yaml:4: data.train: must be a list, not {")
    assert line.endswith("begin each item with '- '")


def test_names_of_test_sets_are_valid_folder_names(write: Write) -> None:
    path = write("a.yaml", "data:\n  src_lang: en\n  tgt_lang: de\n  test:\n    ../x: {tsv: a}\n")
    assert messages(path) == ["a.yaml:5: data.test.../x: a set name may only contain letters, digits, '_' and '-'"]


def test_all_errors_are_reported_with_their_lines(write: Write) -> None:
    write("base.yaml", "data:\n  src_lang: en\nmodel:\n  norm: x\n")
    path = write("a.yaml", "extends: base.yaml\nmodel:\n  d_ff: 0\n")
    assert [line.split(": ")[:2] for line in messages(path, "training.seed=-1")] == [
        ["base.yaml:1", "data.tgt_lang"],
        ["a.yaml:3", "model.d_ff"],
        ["base.yaml:4", "model.norm"],
        ["override 'training.seed=-1'", "training.seed"],
    ]


def test_conflicts_name_the_key_that_was_set(write: Write) -> None:
    write("base.yaml", DATA + "model:\n  num_heads: 6\n  d_model: 60\n")
    path = write("a.yaml", "extends: base.yaml\nmodel:\n  d_model: 64\n")
    assert messages(path) == ["a.yaml:3: model.d_model: num_heads 6 does not divide d_model 64"]
    assert messages(path, "model.num_heads=7")[0].startswith("override 'model.num_heads=7': model.num_heads: ")


def test_conflicts_between_sections(write: Write) -> None:
    path = write("a.yaml", DATA + "tokenizer:\n  joint: false\n")
    assert messages(path)[0].startswith("a.yaml:3: tokenizer.joint: model.tie_embeddings 'all' needs tokenizer.joint: ")
    path = write("b.yaml", DATA + "model:\n  max_positions: 100\n")
    assert messages(path)[0].startswith("b.yaml:3: model.max_positions: data.filters.max_tokens 256 (plus eos) exceeds")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("german", "did you mean de (German)?"),
        ("Deutsch", "did you mean de (German)?"),
        ("Portugese", "did you mean pt (Portuguese)?"),
        ("jp", "did you mean ja (Japanese)?"),
        ("日本語", "did you mean ja (Japanese)?"),
        ("xx", "not 'xx'"),
        ("", "not ''"),
        ("de_", "not 'de_'"),
        ("zh Hant", "not 'zh Hant'"),
    ],
)
@pytest.mark.parametrize("key", ["data.src_lang", "data.train.0.tgt_lang", "data.tgt_langs.0"])
def test_invalid_language_codes(key: str, code: str, hint: str, write: Write) -> None:
    base = write("a.yaml", "data: {src_lang: en, tgt_lang: de, train: [{src: a, tgt: b}], language_tags: source}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(base, [f"{key}='{code}'"])
    assert f"{key}: must be an ISO 639 code" in str(raised.value)
    assert hint in str(raised.value)


@pytest.mark.parametrize("code", ["no", "pt-BR", "zh_Hant", "zho_Hans", "NDS", "sh", "qaa"])
def test_language_codes(code: str, write: Write) -> None:
    assert load_config(write("a.yaml", f"data: {{src_lang: {code}, tgt_lang: de}}\n")).config.data.src_lang == code
