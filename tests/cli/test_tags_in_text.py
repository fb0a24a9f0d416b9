"""Tags in text are ordinary characters wherever text enters or leaves a model."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from program import invoke
from transformers import AutoTokenizer

from mtformer.config.loading import load_config
from mtformer.config.schema import Config, TokenizerConfig
from mtformer.data.batching.augment import pair_keys
from mtformer.decoding.attention_maps import attention_maps
from mtformer.decoding.translator import Translator
from mtformer.experiment.prepare import make_tokenizers, prepare_experiment
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import EOS, UNK, Tokenizer
from mtformer.text.train import train_tokenizer

TAGS = ("<2de>", "<2en>", "<bt>")
LINES = ["<2en> The dog sleeps.", "A<bt> dog.", "The <２de> man <2de> sees a dog."]
SHORT = ["training.max_steps=4", "training.validate_every=4", "training.log_every=4", "training.average_last=0"]


@pytest.fixture(scope="module", params=["new source", "new target", "old source", "old target"])
def tagged(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run in both directions; in an old one, as those of version 0.3, tags are user-defined symbols."""
    age, side = request.param.split()
    folder = tmp_path_factory.mktemp("tagged")
    text = f"[{{src: {folder}/bt.en, tgt: {folder}/bt.de}}]"
    for language in ("en", "de"):
        lines = (corpus / f"dev.{language}").read_text().splitlines()
        (folder / f"bt.{language}").write_text("".join(f"<2en> {line} < 2 > <bt>\n" for line in lines))
    given = []
    if age == "old":
        lines = [line for language in ("en", "de") for line in (corpus / f"train.{language}").read_text().splitlines()]
        settings = TokenizerConfig(vocab_size=300, user_symbols=[*TAGS, "<keep>"])
        train_tokenizer([*lines, "< 2 >"], settings, folder / "old.model")
        given = [f"tokenizer.src_model={folder}/old.model"]
    result = invoke(
        "train", corpus / "small.yaml", *SHORT, *given, "data.both_directions=true", f"data.language_tags={side}",
        f"data.corpora.bt={{sources: {text}, tag: <bt>}}", "tokenizer.user_symbols=[<keep>]",
        "data.noise.final_stop=0.5", "--run-dir", folder / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return RunDir(folder / "run")


@pytest.fixture(scope="module")
def translator(tagged: RunDir) -> Translator:
    return Translator.load(tagged.path, device="cpu")


def tag_ids(translator: Translator) -> set[int]:
    """Return the ids of the tags, and check that they are control symbols."""
    tokenizer = translator.tokenizers.src
    ids = {tokenizer.piece_id(tag) for tag in TAGS}
    assert len(ids - {UNK}) == len(TAGS)
    assert sorted(ids) == tokenizer.tag_ids
    return ids


def test_new_runs_declare_tags_as_control_symbols(tagged: RunDir) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tagged.tokenizer / "joint.model"))
    is_new = load_config(tagged.config).config.tokenizer.src_model is None
    assert [processor.IsControl(processor.PieceToId(tag)) for tag in TAGS] == [is_new] * 3
    assert not processor.IsControl(processor.PieceToId("<keep>"))


def test_sources_have_no_tags(translator: Translator) -> None:
    for ids, line in zip(translator.tokenizers.src.encode(LINES), LINES, strict=True):
        assert tag_ids(translator).isdisjoint(ids)
        assert UNK in ids or translator.tokenizers.src.decode([ids]) == [line.replace("２", "2")]
    assert "<keep>" in translator.tokenizers.src.pieces("a <keep> dog")


def test_translations_have_no_tags(translator: Translator) -> None:
    constraints = {"prefixes": ["<2de> ein", "", ""], "required": [[], ["<bt>"], []], "glossary": {"dog": "<2en>"}}
    found = translator.translate(LINES, attention=True, **constraints)
    assert found[0].text.startswith("<2de> ein")
    assert not any(flag.startswith("missing") for one in found[:2] for flag in one.flags)
    for one in found:
        assert tag_ids(translator).isdisjoint(one.tokens)
        assert one.attention is not None
        assert set(TAGS).isdisjoint(one.attention.src_pieces)
        assert len(one.attention.src_pieces) == len(one.attention.weights[0])
    sampled = translator.translate(LINES * 5, sampling=True, temperature=5.0, max_length=40)
    assert all(tag_ids(translator).isdisjoint(one.tokens) for one in sampled)


def test_given_translations_have_no_tags(translator: Translator) -> None:
    for one in translator.score(LINES, LINES):
        assert one is not None
        assert set(TAGS).isdisjoint(one.pieces)
    maps = attention_maps(translator, LINES[0], LINES[0])
    assert set(TAGS).isdisjoint(maps.src_pieces[maps.num_tags :])
    assert set(TAGS).isdisjoint(maps.tgt_pieces)


def test_html_has_no_tags(tagged: RunDir, translator: Translator) -> None:
    """The line `<2en>` is text in HTML if it is escaped."""
    html = "<p>&lt;2en&gt; The dog <b>sleeps</b>.</p>\n"
    result = invoke("translate", tagged.path, "--html", stdin=html.encode())
    assert result.exit_code == 0, result.stderr
    plain = invoke("translate", tagged.path, stdin=b"<2en> The dog sleeps.\n").stdout
    words = result.stdout.replace("<p>", "").replace("</p>", "").replace("<b>", "").replace("</b>", "")
    assert "".join(words.split()).replace("&lt;", "<").replace("&gt;", ">") == "".join(plain.split())


def test_prepared_text_has_no_tags(tagged: RunDir, translator: Translator) -> None:
    prepared = prepare_experiment(load_config(tagged.config).config, tagged.tokenizer)
    tags = tag_ids(translator)
    num_signs = 0
    for corpus in prepared.corpora:
        pairs = corpus.read()
        for side in ("src", "tgt"):
            for ids in pairs[side].to_pylist():
                assert tags.isdisjoint(ids)
                num_signs += "<2en>" in translator.tokenizers.src.decode([ids])[0]
    assert num_signs, "the premise: the text contains them"
    augmentation = prepared.batches.augmentation
    assert augmentation is not None
    pairs = prepared.corpora[-1].read()
    noisy = augmentation(pairs, pair_keys(1, "train", np.arange(len(pairs))))
    assert all(tags.isdisjoint(ids) for side in ("src", "tgt") for ids in noisy[side].to_pylist())


def test_the_command_encodes_no_tags(tagged: RunDir, translator: Translator) -> None:
    result = invoke("tokenizer", "encode", tagged.path, "--ids", stdin=b"<2en> a <bt>\n")
    assert result.exit_code == 0, result.stderr
    assert tag_ids(translator).isdisjoint(map(int, result.stdout.split()))


@pytest.mark.parametrize("form", ["bundle", "ctranslate2", "huggingface"])
def test_exports_contain_the_tags_as_control_symbols(
    tagged: RunDir, translator: Translator, form: str, tmp_path: Path
) -> None:
    if translator.data is not None and translator.data.language_tags == "target" and form != "bundle":
        pytest.skip("these formats have no start token for each language")
    result = invoke("export", tagged.path, "--format", form, "--output", tmp_path / "export")
    assert result.exit_code == 0, result.stderr
    models = [*tmp_path.glob("export/tokenizer/*.model"), *tmp_path.glob("export/*.spm")]
    assert models
    for model in models:
        exported = Tokenizer.load(model)
        assert set(exported.tag_ids) == tag_ids(translator)
        assert exported.encode(LINES) == translator.tokenizers.src.encode(LINES)
    if form == "huggingface":
        settings = json.loads((tmp_path / "export" / "generation_config.json").read_text())
        assert [[number] for number in sorted(tag_ids(translator))] == settings["bad_words_ids"][2:]
        ids = AutoTokenizer.from_pretrained(tmp_path / "export")(LINES)["input_ids"]
        assert ids == [[*of_line, EOS] for of_line in translator.tokenizers.src.encode(LINES)]
    else:
        ours, theirs = translator.translate(LINES), Translator.load(tmp_path / "export").translate(LINES)
        assert [one.text for one in ours] == [one.text for one in theirs]


def test_a_run_and_its_bundle_form_an_ensemble(tagged: RunDir, tmp_path: Path) -> None:
    assert invoke("export", tagged.path, "--output", tmp_path / "bundle").exit_code == 0
    both = Translator.load([tagged.path, tmp_path / "bundle"], device="cpu", precision="fp32")
    alone = Translator.load(tagged.path, device="cpu", precision="fp32")
    assert both.weights == [*alone.weights, RunDir(tmp_path / "bundle").bundle_weights]
    scores = [translation.score for translation in alone.translate(LINES)]
    assert [translation.score for translation in both.translate(LINES)] == pytest.approx(scores, abs=1e-4)


def test_the_cache_distinguishes_tags_from_symbols(corpus: Path, tmp_path: Path) -> None:
    """A tokenizer of version 0.3 in the cache is not used again, but one without tags is."""
    base = load_config(corpus / "small.yaml", [f"data.cache_dir={tmp_path}/cache"]).config
    tagged = load_config(
        corpus / "small.yaml",
        [f"data.cache_dir={tmp_path}/cache", "data.both_directions=true", "data.language_tags=source"],
    ).config
    symbols = base.tokenizer.model_copy(update={"user_symbols": ["<2de>", "<2en>"]})
    configs: list[Config] = [base, base.model_copy(update={"tokenizer": symbols}), tagged]
    pairs = [make_tokenizers(config, tmp_path / str(number)) for number, config in enumerate(configs)]
    assert [len(pair.src.tag_ids) for pair in pairs] == [0, 0, 2]
