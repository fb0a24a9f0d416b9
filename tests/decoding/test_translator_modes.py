"""Tests of all search modes at the level of text: batches, ensembles, n-best lists, scores, unknown pieces."""

import random
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy import random_lines

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.lines.postprocessing import agreement, expected_utilities
from mtformer.decoding.search.engine import Batches, Engine, NBests
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.translator import Translation, Translator
from mtformer.errors import CheckpointError, ConfigError, DataError, MtformerError
from mtformer.files import write_checksums
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import EOS, UNK

MODES: dict[str, dict[str, Any]] = {
    "beam": {"beam_size": 4, "n_best": 3},
    "greedy": {"beam_size": 1},
    "sampling": {"sampling": True, "n_best": 3, "temperature": 0.8},
    "mbr": {"mbr_samples": 6, "n_best": 2},
    "keep": {"beam_size": 4, "n_best": 2, "keep": "numbers"},
    "rules": {"beam_size": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_length": 2},
}


@pytest.fixture(scope="module")
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def other(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a copy of the bundle with different weights."""
    copy = RunDir(shutil.copytree(run.path, tmp_path_factory.mktemp("other") / "run"))
    generator = torch.Generator().manual_seed(9)
    weights = load_file(copy.bundle_weights)
    noise = {name: torch.randn(x.shape, generator=generator) for name, x in weights.items()}
    save_file({name: x + 0.1 * x.std() * noise[name] for name, x in weights.items() if x.dim()}, copy.bundle_weights)
    write_checksums(copy.path)
    return copy


def all_of(one: Translation) -> list[Translation]:
    return [one, *one.alternatives]


def assert_same(found: Sequence[Translation], expected: Sequence[Translation]) -> None:
    for one, alone in zip(found, expected, strict=True):
        assert [each.text for each in all_of(one)] == [each.text for each in all_of(alone)]
        assert [each.tokens for each in all_of(one)] == [each.tokens for each in all_of(alone)]
        for each, exact in zip(all_of(one), all_of(alone), strict=True):
            assert each.score == pytest.approx(exact.score, abs=1e-4)
            # Individual values may differ more, because these weights are much larger than trained ones.
            assert each.token_log_probabilities == pytest.approx(exact.token_log_probabilities, abs=1e-3)


@pytest.mark.parametrize(
    ("mode", "with_prefixes"),
    [*((mode, False) for mode in MODES), *((mode, True) for mode in ("beam", "greedy", "sampling", "mbr"))],
)
def test_translations_do_not_depend_on_batch_size_and_order(
    translator: Translator, mode: str, with_prefixes: bool
) -> None:
    lines = random_lines(12, seed=11)
    prefixes = [["", "die frau", "rot", ""][i % 4] if with_prefixes else "" for i in range(12)]
    alone = [
        translator.translate([line], prefixes=[prefix], first_line=number, **MODES[mode])[0]
        for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True))
    ]
    assert len({one.text for one in alone}) > 8
    assert len({len(one.pieces) for one in alone}) > 4, "sentences should end at different steps"
    assert_same(translator.translate(lines, prefixes=prefixes, beam_tokens=100_000, **MODES[mode]), alone)
    if mode in ("sampling", "mbr"):  # samples depend on the line number
        first = translator.translate(lines[:5], prefixes=prefixes[:5], **MODES[mode])
        assert_same(
            [*first, *translator.translate(lines[5:], prefixes=prefixes[5:], first_line=5, **MODES[mode])], alone
        )
        return
    order = list(range(12))
    random.Random(1).shuffle(order)
    shuffled = translator.translate(
        [lines[i] for i in order], prefixes=[prefixes[i] for i in order], beam_tokens=150, **MODES[mode]
    )
    assert_same(shuffled, [alone[i] for i in order])


@pytest.mark.parametrize("mode", ["beam", "greedy", "sampling", "rules"])
def test_score_equals_the_scores_from_translate(translator: Translator, mode: str) -> None:
    lines = random_lines(40, seed=12)
    found = translator.translate(lines, **MODES[mode])
    sources = [[*ids, EOS] for ids in translator.tokenizers.src.encode(lines)]
    for one, each in zip(found, translator.engine.score(sources, [one.tokens for one in found]), strict=True):
        assert one.token_log_probabilities == pytest.approx(each, abs=1e-4)
        assert one.log_probability == pytest.approx(sum(each), abs=1e-3)
    # Keep only translations for which the tokenizer returns the tokens that the model generated.
    ids = translator.tokenizers.tgt.encode([one.text for one in found])
    same = [i for i, one in enumerate(found) if ids[i] == one.tokens]
    assert len(same) > 3
    scored = translator.score([lines[i] for i in same], [found[i].text for i in same])
    for i, score in zip(same, scored, strict=True):
        assert score is not None
        assert score.pieces == found[i].pieces
        assert score.token_log_probabilities == pytest.approx(found[i].token_log_probabilities, abs=1e-4)
        assert score.log_probability == pytest.approx(found[i].log_probability, abs=1e-3)


@pytest.mark.parametrize("mode", ["beam", "greedy", "mbr"])
def test_excessively_large_weights_raise_one_clear_error(run: RunDir, tmp_path: Path, mode: str) -> None:
    """A learning rate of 1e30 would give weights this large."""
    save_file({name: x * 1e30 for name, x in load_file(run.bundle_weights).items()}, tmp_path / "x.safetensors")
    diverged, lines = Translator.load(run.path, str(tmp_path / "x.safetensors"), device="cpu"), random_lines(5, seed=1)
    message = (
        f"{tmp_path}/x.safetensors: the model's scores are not finite; training diverged, or its weights are too "
        "large for fp32; use another checkpoint"
    )
    with pytest.raises(MtformerError) as error:
        diverged.translate(lines, **MODES[mode])
    assert str(error.value) == message
    with pytest.raises(MtformerError) as error:
        diverged.score(lines, lines)
    assert str(error.value) == message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named_in_the_error(run: RunDir, tmp_path: Path, value: float) -> None:
    weights = load_file(run.bundle_weights)
    weights["decoder_norm.weight"][-1] = value
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError) as error:
        Translator.load(run.path, str(tmp_path / "x.safetensors"), device="cpu")
    assert str(error.value) == (
        f"{tmp_path}/x.safetensors: decoder_norm.weight has NaN or infinite values; use another checkpoint"
    )


def test_an_output_bias_of_minus_infinity_is_accepted_but_others_are_not(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "run"))
    copy.config.write_text(copy.config.read_text().replace("output_bias: false", "output_bias: true"))
    weights, translator = load_file(copy.bundle_weights), Translator.load(run.path, device="cpu")
    closed = translator.translate(["ein hund"])[0].tokens[0]
    bias = torch.zeros(translator.tokenizers.tgt.vocab_size)
    for value, is_loaded in ((-float("inf"), True), (float("inf"), False), (float("nan"), False)):
        bias[closed] = value
        save_file({**weights, "output_bias": bias}, copy.bundle_weights)
        write_checksums(copy.path)
        if is_loaded:
            tokens = Translator.load(copy.path, device="cpu").translate(["ein hund"])[0].tokens
            assert tokens
            assert closed not in tokens
        else:
            with pytest.raises(CheckpointError, match="output_bias has NaN or infinite values"):
                Translator.load(copy.path, device="cpu")


def test_score_of_unusual_lines(translator: Translator) -> None:
    counts: list[int] = []
    targets = ["die katze", "", "hund " * 70, "a\nb"]
    found = translator.score(["der hund", "der hund", "ein", "hund " * 70], targets, progress=counts.append)
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].pieces == ["</s>"]
    assert found[2:] == [None, None]
    assert sum(counts) == 4
    alone = translator.score(["der hund"], ["die katze"])[0]
    assert alone is not None
    assert alone.log_probability == pytest.approx(found[0].log_probability, abs=1e-3)
    with pytest.raises(DataError, match="2 sources and 1 targets"):
        translator.score(["a", "b"], ["c"])
    assert translator.score([], []) == []


def test_agreement_compares_the_best_beam_with_the_others(translator: Translator) -> None:
    lines = random_lines(10, seed=14)
    n_bests = translator.translate(lines, beam_size=4, n_best=4)
    for one, several in zip(translator.translate(lines, beam_size=4, token_scores=True), n_bests, strict=True):
        assert one.agreement == pytest.approx(agreement([each.text for each in all_of(several)]))
        assert several.agreement is None
    for settings in ({"beam_size": 1}, {"sampling": True, "n_best": 3}, {"mbr_samples": 4}):
        found = translator.translate(lines, token_scores=True, **settings)
        assert all(one.agreement is None for one in found)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Ja."], 1.0),
        (["Ja.", "Ja."], 1.0),
        (["Ja.", "Nein."], 0.0),
        (["ein Hund", "einHund"], 1.0),
        (["abcdef", "abcdxf"], 1 / 3),
        (["abcdef", "abcdxf", "abcdef", "uvwxyz"], (1 / 3 + 1 + 0) / 3),
        (["abcdef", "ab cd"], 2 / 4),
        (["", "abcdef"], 0.0),
    ],
)
def test_agreement(texts: list[str], expected: float) -> None:
    assert agreement(texts) == pytest.approx(expected)


def test_n_best_lists_are_sorted_and_distinct(translator: Translator) -> None:
    lines = random_lines(10, seed=13)
    best = translator.translate(lines, beam_size=5)
    for one, first in zip(translator.translate(lines, beam_size=5, n_best=5), best, strict=True):
        each = all_of(one)
        assert (one.text, one.score, first.alternatives) == (first.text, first.score, ())
        assert [t.score for t in each] == sorted((t.score for t in each), reverse=True)
        assert len({tuple(t.tokens) for t in each}) == len(each) == 5
    with pytest.raises(ConfigError, match="n_best 6 is above beam_size 5"):
        translator.translate(lines, beam_size=5, n_best=6)


def test_mbr_returns_the_sample_with_the_highest_utility(translator: Translator) -> None:
    lines = random_lines(6, seed=14)
    samples = translator.translate(lines, sampling=True, n_best=12, seed=4)
    found = translator.translate(lines, mbr_samples=12, n_best=3, seed=4)
    for one, drawn in zip(found, samples, strict=True):
        texts = [each.text for each in all_of(drawn)]
        utilities = expected_utilities(texts)
        ranked = sorted(utilities.values(), reverse=True)
        assert [utilities[each.text] for each in all_of(one)] == ranked[:3]
    assert [one.text for one in found] != [one.text for one in samples]
    assert [one.text for one in translator.translate(lines, mbr_samples=12, seed=5)] != [one.text for one in found]


def test_ensembles_of_runs_or_checkpoints_average_probabilities(
    run: RunDir, other: RunDir, translator: Translator
) -> None:
    lines = random_lines(10, seed=17)
    runs = Translator.load([run.path, str(other.path)], device="cpu")
    paths = [str(run.bundle_weights), str(other.bundle_weights)]
    checkpoints = Translator.load(run.path, checkpoint=paths, device="cpu")
    assert [str(path) for path in checkpoints.weights] == paths == [str(path) for path in runs.weights]
    assert runs.translate(lines, attention=True) == checkpoints.translate(lines, attention=True)
    second = Translator.load(other.path, device="cpu")
    for one, a, b in zip(*(each.score(lines, lines[::-1]) for each in (runs, translator, second)), strict=True):
        assert one
        assert a
        assert b
        pairs = torch.tensor([a.token_log_probabilities, b.token_log_probabilities])
        assert one.token_log_probabilities == pytest.approx(pairs.exp().mean(dim=0).log().tolist(), abs=1e-4)
    assert [t.text for t in runs.translate(lines)] != [t.text for t in translator.translate(lines)]


@pytest.mark.parametrize(("runs", "checkpoint"), [(0, None), (1, [])])
def test_an_ensemble_needs_a_member(run: RunDir, runs: int, checkpoint: list[str] | None) -> None:
    with pytest.raises(ConfigError, match="name at least one"):
        Translator.load([run.path] * runs, checkpoint)


def test_runs_with_different_tokenizers_cannot_form_an_ensemble(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    model = copy.tokenizer / "joint.model"
    model.write_bytes(model.read_bytes().replace(b"katze", b"gatze"))
    write_checksums(copy.path)
    with pytest.raises(CheckpointError, match="its tokenizer differs from") as caught:
        Translator.load([run.path, copy.path], device="cpu")
    assert "\n" not in str(caught.value)
    assert str(copy.path) in str(caught.value)


class FixedEngine(Engine):
    """Engine that returns fixed hypotheses; row t of its attention attends only to source piece t + 1."""

    device, dtype, max_positions, models = "cpu", "float32", 64, ()

    def __init__(self, hypotheses: list[Hypothesis]) -> None:
        self.hypotheses = hypotheses
        self.num_attended = 0

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        pass

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        yield from ([list(self.hypotheses) for _ in batch] for batch in batches)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        raise AssertionError("the search already returns the scores")

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        self.num_attended += len(sources)
        return [torch.eye(len(t) + 1, len(s) + len(t))[1:, : len(s) - 1] for s, t in zip(sources, targets, strict=True)]


def fixed(translator: Translator, *texts: list[str]) -> tuple[Translator, FixedEngine]:
    """Return a translator whose search returns these lists of pieces as hypotheses, best first."""
    vocabulary = translator.tokenizers.tgt.vocabulary()
    rows = [[vocabulary.index(piece) for piece in pieces] for pieces in texts]
    scores = [-float(i + 1) for i in range(len(texts))]
    engine = FixedEngine([
        Hypothesis(row, score, score, [score / (len(row) + 1)] * (len(row) + 1))
        for row, score in zip(rows, scores, strict=True)
    ])  # fmt: skip
    return Translator(engine, translator.tokenizers, DecodingConfig(beam_size=max(1, len(texts)))), engine


def test_unknown_tokens_are_shown_as_a_symbol(translator: Translator) -> None:
    ours, _ = fixed(translator, ["▁die", "▁", "<unk>", "▁rot"], ["▁die", "▁frau"])
    source = "▁der", "▁katze", "▁", "☃", "▁rot"
    assert translator.tokenizers.src.pieces("der katze ☃ rot") == list(source)
    one = ours.translate(["der katze ☃ rot"], n_best=2, attention=True)[0]
    assert one.text.split() == ["die", "⁇", "rot"]
    assert one.pieces == ["▁die", "▁", "▁⁇▁", "▁rot", "</s>"]
    assert UNK in one.tokens
    assert one.alternatives[0].text == "die frau"


def test_unknown_tokens_count_as_words_in_alignments(translator: Translator) -> None:
    ours, _ = fixed(translator, ["▁die", "<unk>", "▁rot"])
    one = ours.translate(["der katze mann rot"], attention=True)[0]
    assert one.text == "die ⁇  rot"
    assert one.attention is not None
    assert one.attention.alignment == [(1, 0), (2, 1), (3, 2)]


def test_attention_is_computed_only_for_returned_translations(translator: Translator) -> None:
    ours, engine = fixed(translator, *[["▁die"]] * 4)
    assert ours.translate(["der hund"])[0].attention is None
    assert engine.num_attended == 0
    shown = ours.translate(["der hund"], attention=True, n_best=2)[0]
    assert engine.num_attended == 2
    assert shown.attention is not None
    assert shown.attention.src_pieces == ["▁der", "▁hund"]
    assert shown.attention.weights == [[0.0, 1.0]]
    assert shown.attention.src_starts == [0]


def test_the_package_exports_translator_and_imports_fast() -> None:
    code = (
        "import sys, mtformer\n"
        "assert 'torch' not in sys.modules\n"
        "from mtformer import Translator\n"
        "assert mtformer.Translator is Translator and Translator.__module__ == 'mtformer.decoding.translator'\n"
        "heavy = {'datasets', 'sacrebleu', 'ctranslate2', 'transformers', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "try: mtformer.Nothing\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("module 'mtformer' has no attribute 'Nothing'\n", "")
