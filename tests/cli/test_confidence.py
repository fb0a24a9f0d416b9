"""The confidence of translations: fitting, saving, and its use by commands."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program import invoke
from typer.testing import Result

from mtformer.decoding.lines.confidence import GOOD_CHRF, Calibration, Logistic, features, fit, load_calibration
from mtformer.decoding.lines.translation import Flag, Translation, join
from mtformer.errors import DataError
from mtformer.files import sealed
from mtformer.run_dir import RunDir, write_config


def simulated(num: int, seed: int) -> tuple[list[str], list[Translation], list[float]]:
    """Translations that are good with a probability that depends on their log-probability and flags."""
    chance = random.Random(seed)
    sources, translations, chrf = [], [], []
    for _ in range(num):
        length, quality = chance.randint(1, 30), chance.gauss(0, 1)
        tokens = [min(-0.01, -1 + 0.6 * quality + chance.gauss(0, 0.3)) for _ in range(length)]
        flags = (Flag.NUMBERS,) if chance.random() < 0.1 else ()
        good = chance.random() < 1 / (1 + math.exp(-(2 * quality - 2 * len(flags))))
        text = "word " * length
        agreement = 1 / (1 + math.exp(-quality - chance.gauss(0, 0.5)))
        pieces = ["a"] * length
        one = Translation(text, -1.0, [4] * length, sum(tokens), tokens, pieces, flags, agreement=agreement)
        translations.append(one)
        sources.append(text + "x" * chance.randint(0, 9))
        chrf.append(GOOD_CHRF + (10 if good else -10))
    return sources, translations, chrf


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return fit(*simulated(2_000, seed=1))


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("has_agreement", [True, False])
def test_the_confidence_is_the_share_of_good_translations(
    calibration: Calibration, has_tokens: bool, has_agreement: bool
) -> None:
    sources, translations, chrf = simulated(4_000, seed=2)
    if not has_tokens:
        translations = [replace(one, token_log_probabilities=[]) for one in translations]
    if not has_agreement:
        translations = [replace(one, agreement=None) for one in translations]
    found = [calibration.rate(source, one) for source, one in zip(sources, translations, strict=True)]
    bins: dict[int, list[tuple[float, bool]]] = {}
    for one, score in zip(found, chrf, strict=True):
        assert one.confidence is not None
        bins.setdefault(int(10 * one.confidence), []).append((one.confidence, score >= GOOD_CHRF))
    gaps = [abs(sum(p for p, _ in some) - sum(good for _, good in some)) for some in bins.values()]
    assert sum(gaps) / len(found) < 0.04
    assert len(bins) > 7
    assert all((Flag.LOW_CONFIDENCE in one.flags) == ((one.confidence or 0) < 0.2) for one in found)


def test_a_blank_line_is_certain_and_a_split_line_as_good_as_its_worst_part(calibration: Calibration) -> None:
    assert calibration.rate("  ", Translation("", 0.0, [])).confidence == 1
    parts = [
        Translation(text, 0.0, [4], -1.0, pieces=["a"], confidence=value) for text, value in (("a", 0.9), ("b", 0.3))
    ]
    assert join(parts, 1.0).confidence == 0.3


def test_each_feature_counts(calibration: Calibration) -> None:
    sources, translations, _ = simulated(1, seed=4)
    one = replace(translations[0], flags=())
    first = calibration.rate(sources[0], one).confidence
    for other in (
        replace(one, log_probability=2 * one.log_probability),
        replace(one, flags=(Flag.NUMBERS,)),
        replace(one, agreement=0.0),
    ):
        assert (calibration.rate(sources[0], other).confidence or 1) < (first or 0)
    assert features("x" * 9, replace(one, text="y" * 4))["length_ratio"] == pytest.approx(math.log(0.5))
    assert features("", replace(one, token_log_probabilities=[-1.0, -3.0]))["deviation"] == 1
    assert features("", replace(one, log_probability=-0.5 * len(one.pieces)))["probability"] == math.exp(-0.5)


@pytest.mark.parametrize("share", [0.0, 0.002, 0.3])
def test_flags_never_raise_the_confidence(share: float) -> None:
    """Even if dev has no flag, or only translations with a flag are good."""
    sources, translations, chrf = simulated(600, seed=7)
    num_flagged = round(share * 600)
    translations = [replace(one, flags=(Flag.NUMBERS,) * (n < num_flagged)) for n, one in enumerate(translations)]
    fitted = fit(sources, translations, [GOOD_CHRF] * num_flagged + chrf[num_flagged:])
    pairs = [*zip(sources, translations, strict=True)]
    plain, flagged = (
        [fitted.rate(source, replace(one, flags=flags)).confidence or 0 for source, one in pairs]
        for flags in ((), (Flag.NUMBERS,))
    )
    assert all(worse <= better for worse, better in zip(flagged, plain, strict=True))
    if share < 0.01:
        assert sum(flagged) < 0.7 * sum(plain)


def test_extreme_features_are_limited() -> None:
    one = Logistic(bias=0.0, terms={"length_ratio": (0.0, 1.0, 1.0)})
    assert 0 < one.probability({"length_ratio": -1e4}) < 1e-9
    assert 1 - 1e-9 < one.probability({"length_ratio": 1e4}) < 1
    certain = Translation("x", 0.0, [4], 0.0, [0.0, -1000.0], ["a"], (Flag.NUMBERS, Flag.LOW_CONFIDENCE))
    found = features("x", certain)
    assert (found["deviation"], found["flags"]) == (20.0, 1.0)  # the flag of an earlier fit is not a feature


def test_a_perfect_feature_has_a_limited_weight_and_the_mean_is_exact() -> None:
    sources, translations, _ = simulated(600, seed=6)
    chrf = [GOOD_CHRF - (one.log_probability / len(one.pieces) < -0.5) for one in translations]
    fitted = fit(sources, translations, chrf)
    found = [fitted.rate(source, one).confidence or 0.0 for source, one in zip(sources, translations, strict=True)]
    assert sum(found) == pytest.approx(sum(score >= GOOD_CHRF for score in chrf), abs=0.1)
    assert all(abs(weight) < 10 for one in fitted.regressions for _, _, weight in one.terms.values())


def test_a_model_with_one_beam_has_no_agreement_to_fit() -> None:
    sources, translations, chrf = simulated(600, seed=5)
    one_beam = [replace(one, agreement=None) for one in translations]
    blank = Translation("", 0.0, [])
    fitted = fit([*sources, "  "], [*one_beam, blank], [*chrf, 100.0])
    assert fitted.num_pairs == 600
    assert [len(one.terms) for one in fitted.regressions] == [5, 4]
    confidences = [fitted.rate(sources[0], one).confidence for one in (one_beam[0], translations[0])]
    assert confidences[0] == confidences[1] is not None


def test_too_few_or_equal_pairs_are_refused() -> None:
    sources, translations, chrf = simulated(600, seed=3)
    with pytest.raises(DataError, match="at least 500 dev pairs, not 499"):
        fit(sources[:499], translations[:499], chrf[:499])
    with pytest.raises(DataError, match="all translations have a chrF2\\+\\+ below 50"):
        fit(sources, translations, [20.0] * 600)


def test_a_line_without_tokens_is_left_out(calibration: Calibration) -> None:
    sources, translations, chrf = simulated(2_000, seed=1)
    assert fit([*sources, "\u200b"], [*translations, Translation("", 0.0, [])], [*chrf, 0.0]) == calibration


def test_saving_and_loading(calibration: Calibration, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "confidence.json"
    assert load_calibration(path) is None
    path.write_text(calibration.model_dump_json())
    assert load_calibration(path) == calibration
    for text in ("{", "[]", '{"good_chrf": 50}'):
        path.write_text(text)
        assert load_calibration(path) is None
        assert "have no confidence; delete it, or write it again with `mtformer eval" in caplog.messages[-1]
    assert len(caplog.messages) == 3


VALID: dict[str, Any] = {
    "good_chrf": 50.0,
    "num_pairs": 500,
    "regressions": [
        {"bias": 0.5, "terms": {"probability": [0.5, 0.25, 2.0], "agreement": [0.5, 0.25, 1.0]}},
        {"bias": 0.5, "terms": {"probability": [0.5, 0.25, 2.0]}},
    ],
}
ONLY_AGREEMENT = [{"bias": 0.5, "terms": {"agreement": [0.5, 0.25, 1.0]}}]


def with_terms(**terms: Any) -> list[dict[str, Any]]:
    return [{"bias": 0.5, "terms": terms}]


@pytest.mark.parametrize(
    "values",
    [
        {"regressions": []},
        {"regressions": None},
        {"regressions": {"probability": 1}},
        {"regressions": with_terms()},
        {"regressions": with_terms(unknown=[0.5, 0.25, 1.0])},
        {"regressions": ONLY_AGREEMENT},
        {"regressions": [VALID["regressions"][1], *ONLY_AGREEMENT]},
        {"regressions": with_terms(probability=[0.5, 0.0, 1.0])},
        {"regressions": with_terms(probability=[0.5, -1.0, 1.0])},
        {"regressions": with_terms(probability=[0.5, float("nan"), 1.0])},
        {"regressions": with_terms(probability=[0.5, 1e-300, 1e300])},
        {"regressions": with_terms(probability=[float("inf"), 1.0, 1.0])},
        {"regressions": with_terms(probability=[0.5, 1.0])},
        {"regressions": with_terms(probability=[0.5, "1", 1.0])},
        {"regressions": with_terms(probability=[0.5, True, 1.0])},
        {"regressions": [{"bias": float("nan"), "terms": {"probability": [0.5, 0.25, 2.0]}}]},
        {"regressions": [{"bias": 10**400, "terms": {"probability": [0.5, 0.25, 2.0]}}]},
        {"num_pairs": "500"},
        {"good_chrf": float("nan")},
        {"other": 1},
    ],
    ids=str,
)
def test_a_crafted_confidence_is_refused(values: dict[str, Any], run: Path) -> None:
    """The checksum is correct, as that of an attacker would be."""
    path = run / "confidence.json"
    path.write_text(json.dumps(sealed({**VALID, **values})))
    translated = invoke("translate", run, stdin=b"The man sleeps.\n")
    assert (translated.exit_code, translated.stderr.count("translations have no confidence")) == (0, 1)
    limited = invoke("translate", run, "--only-above", 0.5, stdin=b"The man sleeps.\n")
    assert (limited.exit_code, limited.stderr.count("\n")) == (2, 1)
    assert f"{path}: damaged, or of another version; write it again with `mtformer eval RUN" in limited.stderr


def test_a_confidence_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "confidence.json"
    path.write_text(json.dumps(sealed(VALID)))
    calibration = load_calibration(path)
    assert calibration is not None
    assert [len(regression.terms) for regression in calibration.regressions] == [2, 1]


def test_commands_use_it(run: Path, calibration: Calibration, tmp_path: Path, corpus: Path) -> None:
    text = b"The man sleeps.\n\n"
    plain = json.loads(invoke("translate", run, "--json", stdin=text).stdout.splitlines()[0])
    refused = invoke("translate", run, "--only-above", 0.5, stdin=text)
    assert (refused.exit_code, "needs one run with a confidence" in refused.stderr) == (2, True)
    (run / "confidence.json").write_text(calibration.model_dump_json())
    assert invoke("export", run, "--output", tmp_path / "bundle").exit_code == 0
    assert invoke("export", run, "--checkpoint", 4, "--output", tmp_path / "other").exit_code == 0
    assert not (tmp_path / "other" / "confidence.json").exists()  # it is fitted for the default weights
    of_step = json.loads(invoke("translate", run, "--checkpoint", 4, "--json", stdin=text).stdout.splitlines()[0])
    assert of_step.keys() == plain.keys()
    for path in (run, tmp_path / "bundle"):
        first, blank = map(json.loads, invoke("translate", path, "--json", stdin=text).stdout.splitlines())
        assert first.keys() - plain.keys() == {"confidence"}
        assert 0 < first["confidence"] < 1
        assert blank["confidence"] == 1
        html = ("translate", path, "--html", "--only-above")  # what has no text is copied
        assert invoke(*html, 0, stdin=b"<hr>\n").stdout == invoke(*html, 1, stdin=b"<hr>\n").stdout == "<hr>\n"
        for limit, expected in ((first["confidence"] - 0.001, first["text"]), (first["confidence"] + 0.001, "")):
            shown = invoke("translate", path, "--only-above", max(0, limit), stdin=text)
            assert shown.stdout == f"{expected}\n\n"
        source, target = tmp_path / "in", path.with_suffix(".out")
        source.write_text("The man sleeps.\n")
        words = ("translate", path, "--json", "--input", source, "--output", target)
        assert invoke(*words).exit_code == 0
        (path / "confidence.json").write_text(calibration.model_copy(update={"num_pairs": 1}).model_dump_json())
        source.write_text("The man sleeps.\nThe dog sleeps.\n")
        assert "was written with confidence" in invoke(*words, "--continue").stderr
        (path / "confidence.json").write_text("{}")  # as if written again
        assert invoke("translate", path, stdin=text).exit_code == 0
        (path / "confidence.json").write_text(calibration.model_dump_json())
    for words, message in (
        (["--calibrate"], "needs a dev set"),
        (["--calibrate", "--checkpoint", 4], "--calibrate and --checkpoint cannot be combined"),
        (["--calibrate", "--output", tmp_path / "new"], "--calibrate and --output cannot be combined"),
        (["--checkpoint", 4, "--checkpoint", 8], "give a folder for them with --output"),
        (["--calibrate", "--src", corpus / "dev.en", "--ref", corpus / "dev.de"], "at least 500 dev pairs, not 20"),
    ):
        result: Result = invoke("eval", run, *words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_finished_run_keeps_the_confidence_that_was_fitted_for_it(run: Path, fitted: list[Any]) -> None:
    words = ("train", RunDir(run).config, "--run-dir", run, "--resume")
    (run / "confidence.json").write_text("{}")
    assert invoke(*words).exit_code == 0
    assert fitted == []
    (run / "confidence.json").unlink()
    result = invoke(*words)
    assert result.exit_code == 0
    assert [path for path, *_ in fitted] == [run]
    message = "these pairs also chose the weights, so the confidence may be slightly too high; to fit it to others: "
    assert f"{message}mtformer eval {run} --calibrate --src FILE --ref FILE\n" in result.stderr


def test_pairs_that_also_chose_the_weights_are_reported(
    run: Path, corpus: Path, fitted: list[Any], tmp_path: Path
) -> None:
    def calibrated(*pairs: tuple[str, str]) -> str:
        for name, side in (("x", 0), ("y", 1)):
            (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
        result = invoke("eval", run, "--calibrate", "--src", tmp_path / "x", "--ref", tmp_path / "y")
        assert result.exit_code == 0, result.stderr
        return result.stderr

    sides = [(corpus / f"dev.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")]
    dev = list(zip(*sides, strict=True))
    others = [(f"{src} 猫", f"{tgt} बिल्ली") for src, tgt in dev]

    report = " pairs also chose the weights, because they are in the dev data of the run, so the confidence may be"
    assert f"warning: {len(dev)} of these {len(dev)}{report}" in calibrated(*dev)
    assert f"warning: 3 of these 8{report}" in calibrated(*dev[:3], *others[:5])
    assert "chose the weights" not in calibrated(*others)
    assert len(fitted) == 3

    edited = RunDir(run).config.read_text(encoding="utf-8").replace(str(corpus / "dev.en"), str(tmp_path / "gone"))
    write_config(RunDir(run), edited)
    unknown = "it is unknown whether these pairs also chose the weights: "
    assert f"{unknown}{tmp_path / 'gone'}: the file of the dev data is missing" in calibrated(*dev)


def test_further_training_removes_the_confidence_of_the_earlier_weights(run: Path) -> None:
    (run / "confidence.json").write_text("{}")
    result = invoke("train", RunDir(run).config, "--run-dir", run, "--resume", "training.max_steps=13")
    assert (result.exit_code, (run / "confidence.json").exists()) == (0, False), result.stderr
