"""The vocabulary map of a CTranslate2 export, and the search with it."""

import itertools
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from program import invoke

from mtformer.decoding.translator import Translator
from mtformer.export import vocabulary_map as module
from mtformer.export.vocabulary_map import _expected_links
from mtformer.text.tokenizer import TokenizerPair

Map = dict[str, list[str]]


def export(run: Path, target: Path) -> Map:
    """Export with a vocabulary map, and return it."""
    result = invoke("export", run, "--format", "ctranslate2", "--vocabulary-map", "--output", target)
    assert result.exit_code == 0, result.stderr
    assert "percent of the target tokens in dev" in result.stderr
    rows = [line.split("\t") for line in (target / "vmap.txt").read_text(encoding="utf-8").splitlines()]
    return {piece: candidates.split(" ") for piece, candidates in rows}


def test_the_expected_links_are_those_of_ibm_model_1() -> None:
    rng, V = random.Random(1), 7
    pairs = [([rng.randrange(5) for _ in range(rng.randint(1, 4))], [rng.randrange(V) for _ in range(3)])] * 2
    pairs += [([rng.randrange(5) for _ in range(rng.randint(1, 4))], [rng.randrange(V)]) for _ in range(9)]
    probability: Counter[tuple[int, int]] = Counter({(s, t): 1.0 for src, tgt in pairs for s in src for t in tgt})
    for _ in range(module.NUM_ITERATIONS):
        total = {s: sum(value for (one, _), value in probability.items() if one == s) for s, _ in probability}
        before, probability = {(s, t): value / total[s] for (s, t), value in probability.items()}, Counter()
        for src, tgt in pairs:
            for s, t in itertools.product(src, tgt):
                probability[s, t] += before[s, t] / sum(before[one, t] for one in src)
    keys, counts = _expected_links(pairs, V)
    assert keys.tolist() == sorted(s * V + t for s, t in probability)
    assert counts == pytest.approx([probability[divmod(int(key), V)] for key in keys])


def test_the_map_is_bounded_and_the_search_uses_it(
    run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_COMMON", 3)
    monkeypatch.setattr(module, "NUM_CANDIDATES", 2)
    monkeypatch.setattr(module, "BLOCK", 100)
    (run / "confidence.json").write_text("{}")  # it is fitted without the map, which increases probabilities
    found = export(run, tmp_path / "map")
    assert not (tmp_path / "map" / "confidence.json").exists()
    (run / "confidence.json").unlink()
    tokenizer = TokenizerPair.load(run / "tokenizer").tgt
    assert {"<pad>", "<unk>", "<s>", "</s>"} < set(found[""])
    assert len(found[""]) <= 4 + 3
    assert max(len(candidates) for piece, candidates in found.items() if piece) <= 2 + 1  # and the piece itself
    assert set().union(*found.values()) <= set(tokenizer.vocabulary())
    restricted, plain = Translator.load(tmp_path / "map"), Translator.load(run, backend="ctranslate2")
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    outside = 0
    for line in lines:
        allowed = set(found[""]).union(*(found.get(piece, ()) for piece in tokenizer.pieces(line)))
        assert set(restricted.translate([line])[0].pieces) <= allowed
        outside += not set(plain.translate([line])[0].pieces) <= allowed
    assert outside, "the search without the map chooses the same pieces"
    begun = restricted.translate(lines[:2], prefixes=["Zwei", ""], beam_size=3, n_best=2)
    assert begun[0].text.startswith("Zwei")
    for settings in ({"max_length": 3}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}, {"min_length": 5}):
        assert np.isfinite([one.score for one in restricted.translate(lines, **settings)]).all()


def test_mistakes(run: Path, corpus: Path, tmp_path: Path) -> None:
    assert invoke("export", run, "--output", tmp_path / "bundle").exit_code == 0
    cases = [
        ((tmp_path / "bundle", "--format", "ctranslate2"), f"{tmp_path}/bundle: its config lists no training data"),
        ((run, "--format", "argos"), "--vocabulary-map requires --format ctranslate2"),
        ((run,), "--vocabulary-map requires --format ctranslate2"),
    ]
    for words, message in cases:
        result = invoke("export", *words, "--vocabulary-map", "--output", tmp_path / "it")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert message in result.stderr
    assert not (tmp_path / "it").exists()
