"""Each config error is one line with the file and line number, the dotted path, the problem, and allowed values."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from mtformer.config.loading import dump_config, load_config, without_files
from mtformer.config.schema import TokenizerConfig
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
        (
            'model:\n  dropout: "a\\n\\x1b[2J"\n',
            r"3: model.dropout: must be a number of at least 0 and below 1, not 'a\n\x1b[2J'",
        ),
        (
            'model:\n  dropout: "\\ud800"\n',
            r"3: model.dropout: must be a number of at least 0 and below 1, not '\ud800'",
        ),
        ("model:\n  layer_drop: 1\n", "3: model.layer_drop: must be at least 0 and below 1, not 1"),
        ("training:\n  consistency: r-drop\n", "3: training.consistency: must be one of none, rdrop, simcut, not 'r-d"),
        ("training:\n  consistency_weight: -1\n", "3: training.consistency_weight: must be at least 0, not -1"),
        (
            "training:\n  consistency_weight: 2\n",
            "3: training.consistency_weight: consistency_weight has an effect only with consistency: rdrop or simcut; "
            "also set consistency: rdrop or simcut, or set consistency_weight to its default, 3.0",
        ),
        ("training:\n  cutoff: 1\n", "3: training.cutoff: must be at least 0 and below 1, not 1"),
        (
            "training: {consistency: rdrop, cutoff: 0.1}\n",
            "2: training.cutoff: cutoff has an effect only with consistency: simcut; also set",
        ),
        ("training:\n  token_dropout: 1.0\n", "3: training.token_dropout: must be at least 0 and below 1, not 1.0"),
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
        (
            "training:\n  optimizer: muon\n  sharded: true\n",
            "4: training.sharded: muon needs whole matrices, which sharded: true splits; "
            "use adamw, or set sharded: false",
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
        ("{tsv: a, src_column: 2}", "train.0: src_column and tgt_column are both 2; give different columns"),
    ],
)
def test_sources(write: Write, source: str, message: str) -> None:
    path = write("a.yaml", f"data:\n  src_lang: en\n  tgt_lang: de\n  train:\n  - {source}\n")
    (line,) = messages(path)
    assert line.startswith(f"a.yaml:5: data.{message}")


def test_a_corpus_without_sources_is_an_error(write: Write) -> None:
    (line,) = messages(write("a.yaml", DATA[:-2] + ", corpora: {bt: {sources: []}}}\n"))
    assert line == "a.yaml:1: data.corpora.bt.sources: must have at least one item"


def test_a_source_outside_a_list_is_an_error(write: Write) -> None:
    path = write("a.yaml", "data:\n  src_lang: en\n  tgt_lang: de\n  train:\n    src: a\n    tgt: b\n")
    (line,) = messages(path)
    assert line.startswith("a.yaml:4: data.train: must be a list, not {")
    assert line.endswith("begin each item with '- '")


@pytest.mark.parametrize("key", ["test", "dev"])
def test_names_of_sets_are_valid_folder_names(write: Write, key: str) -> None:
    path = write("a.yaml", f"data:\n  src_lang: en\n  tgt_lang: de\n  {key}:\n    ../x: {{tsv: a}}\n")
    problem = "a set name may only contain letters, digits, '_' and '-'; rename the set"
    assert messages(path) == [f"a.yaml:5: data.{key}.../x: {problem}"]


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ("{tsv: a}", 'dev: must be a list, not {"tsv": "a"}; begin each item with \'- \''),
        ("a.en", "dev: must be a list, not 'a.en'"),
        ("{news: a.en}", f"dev.news: {FORMS}; not 'a.en'"),
        ("{news: [{tsv: a}]}", f"dev.news: {FORMS}; not "),
        ("{news: {src: a}}", "dev.news.tgt: is missing"),
        ("{news: {tsv: a, src_column: 0}}", "dev.news.src_column: must be at least 1, not 0"),
        ("[{tsv: a, src_column: 0}]", "dev.0.src_column: must be at least 1, not 0"),
        ("{news: {tsv: a, src_colum: 1}}", "dev.news.src_colum: unknown key; did you mean 'src_column'? allowed: src_"),
    ],
)
def test_dev_sets(write: Write, dev: str, message: str) -> None:
    (line,) = messages(write("a.yaml", f"data:\n  src_lang: en\n  tgt_lang: de\n  dev: {dev}\n"))
    assert line.startswith(f"a.yaml:4: data.{message}")


TRAIN = "data: {src_lang: en, tgt_lang: de, train: [{tsv: t}], "
METRICS = "training.best_metric must be one of loss, perplexity, bleu, chrf"


@pytest.mark.parametrize(
    ("dev", "metric", "message"),
    [
        ("dev: [{tsv: a}]", "blue", ", not 'blue'; did you mean 'bleu'?"),
        ("dev: [{tsv: a}]", "bleu news", ", not 'bleu news'"),
        ("dev: []", "bleu news", ", not 'bleu news'"),
        ("dev: {news: {tsv: a}, talks: {tsv: b}}", "bleu nwes", "; did you mean 'bleu news'?"),
        ("dev: {news: {tsv: a}, talks: {tsv: b}}", "news.bleu", "followed by a dev set (news, talks), not 'news.bleu'"),
        ("dev: {news: {tsv: a}, talks: {tsv: b}}", "bleu  news", "; did you mean 'bleu news'?"),
        (
            "dev: {news: {tsv: a}, talks: {tsv: b}}",
            "ter news",
            "(news, talks), not 'ter news'; did you mean 'chrf news'?",
        ),
        ("dev: {news: {tsv: a}, talks: {tsv: b}}", "bleu en-de", "(news, talks), not 'bleu en-de'"),
        ("language_tags: source, dev: [{tsv: a}, {tsv: b, tgt_lang: fr}]", "bleu news", "(en-de, en-fr), not"),
    ],
)
def test_best_metric_names_a_dev_set(write: Write, dev: str, metric: str, message: str) -> None:
    (line,) = messages(write("a.yaml", f"{TRAIN}{dev}}}\ntraining:\n  best_metric: {metric}\n"))
    assert line.startswith(f"a.yaml:3: training.best_metric: {METRICS}")
    assert message in line


@pytest.mark.parametrize(
    ("dev", "metric"),
    [
        ("dev: {news: {tsv: a}, talks: {tsv: b}}", "perplexity talks"),
        ("dev: {news: {tsv: a}, talks: {tsv: b, tgt_lang: fr}}, language_tags: source", "chrf talks"),
        ("dev: [{tsv: a}, {tsv: b, tgt_lang: fr}], language_tags: source", "bleu en-fr"),
        ("dev: [{tsv: a}], both_directions: true, language_tags: source", "loss de-en"),
        ("dev: {news: {tsv: a}}, both_directions: true, language_tags: source", "bleu news"),
        ("dev: {news: {tsv: a}}, both_directions: true, language_tags: source", "bleu news.de-en"),
    ],
)
def test_best_metric_may_name_a_dev_set_or_direction(write: Write, dev: str, metric: str) -> None:
    path = write("a.yaml", f"{TRAIN}{dev}}}\ntraining:\n  best_metric: {metric}\n")
    config = load_config(path).config
    assert config.training.best_metric == metric
    bundle = load_config(write("b.yaml", dump_config(without_files(config)))).config  # lists no data
    assert (bundle.data.dev_sets, bundle.training.best_metric) == ({}, metric)


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
    assert messages(path) == ["a.yaml:3: model.d_model: num_heads 6 does not divide d_model 64; change one of them"]
    assert messages(path, "model.num_heads=7")[0].startswith("override 'model.num_heads=7': model.num_heads: ")


def test_conflicts_between_sections(write: Write) -> None:
    path = write("a.yaml", DATA + "tokenizer:\n  joint: false\n")
    assert messages(path)[0].startswith("a.yaml:3: tokenizer.joint: model.tie_embeddings 'all' needs tokenizer.joint: ")
    path = write("b.yaml", DATA + "model:\n  max_positions: 100\n")
    assert "b.yaml:3: model.max_positions: data.filters.max_tokens 256 (plus eos and tags) ex" in messages(path)[0]
    tagged = "corpora: {bt: {sources: [{tsv: b}], tag: <bt>}}}\nmodel:\n  max_positions: "
    assert "(plus eos and tags) exceeds" in messages(write("c.yaml", f"{TRAIN}{tagged}257\n"))[0]
    load_config(write("c.yaml", f"{TRAIN}{tagged}258\n"))
    same_name = "corpora: {train: {sources: [{tsv: b}]}}}\n"
    assert "corpora.train: this is the name of data.train" in messages(write("d.yaml", TRAIN + same_name))[0]
    both = "language_tags: source, both_directions: true, corpora: {bt: {sources: [{tsv: b}, {tsv: c, %s}]}}}\n"
    opposite = TRAIN + both % "src_lang: de, tgt_lang: en"
    assert (
        "both_directions: the sources of a corpus have the same languages in different order"
        in messages(write("e.yaml", opposite))[0]
    )
    load_config(write("f.yaml", TRAIN + both % "tgt_lang: fr"))
    assert "the home folder is unknown" in messages(write("g.yaml", DATA), "training.init_from=~no-such-user/x")[0]


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
@pytest.mark.parametrize("key", ["data.src_lang", "data.train.0.tgt_lang"])
def test_invalid_language_codes(key: str, code: str, hint: str, write: Write) -> None:
    base = write("a.yaml", "data: {src_lang: en, tgt_lang: de, train: [{src: a, tgt: b}], language_tags: source}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(base, [f"{key}='{code}'"])
    assert f"{key}: must be an ISO 639 code" in str(raised.value)
    assert hint in str(raised.value)


@pytest.mark.parametrize("code", ["no", "pt-BR", "zh_Hant", "zho_Hans", "NDS", "sh", "qaa"])
def test_language_codes(code: str, write: Write) -> None:
    assert load_config(write("a.yaml", f"data: {{src_lang: {code}, tgt_lang: de}}\n")).config.data.src_lang == code


@pytest.mark.parametrize("symbol", ["", "a b", "a\u3000b", "<pad>", "</s>"])
def test_symbols_that_sentencepiece_cannot_keep_whole(symbol: str) -> None:
    with pytest.raises(ValidationError, match=r"is empty, has white space or is a special piece"):
        TokenizerConfig(user_symbols=["<2de>", symbol])
