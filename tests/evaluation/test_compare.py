"""Tests of comparing systems: correct numbers, correct grouping by seed, and rejection of incomparable scores."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from scored import CONFIG, corpus, corrupt, make_run, save

from mtformer.config.schema import DecodingConfig, EvaluationConfig
from mtformer.errors import CheckpointError, DataError
from mtformer.evaluation import significance
from mtformer.evaluation.compare import _source_lengths, compare, config_differences
from mtformer.evaluation.scores import score, sentence_chrf
from mtformer.evaluation.significance import Measure, paired_tests
from mtformer.evaluation.systems import (
    Material,
    Run,
    System,
    common_sets,
    group_runs,
    open_runs,
    read_files,
    read_material,
)
from mtformer.run_dir import RunDir

REFERENCES = corpus(60)
OUTPUTS = {Path(f"{name}{seed}"): corrupt(REFERENCES, share, seed) for seed in (1, 2, 3)
           for name, share in (("a", 0.1), ("b", 0.4))}  # fmt: skip
A, B = (System(name, [Run(f"{name}{seed}", Path(f"{name}{seed}")) for seed in (1, 2, 3)]) for name in "ab")
MATERIAL = Material("made", REFERENCES, [REFERENCES], EvaluationConfig(), OUTPUTS, [], [])


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few bootstrap samples and randomization trials to save time."""
    monkeypatch.setattr(significance, "NUM_RESAMPLES", 100)
    monkeypatch.setattr(significance, "NUM_TRIALS", 200)


def bleu(lines: list[str]) -> float:
    return score(lines, REFERENCES, EvaluationConfig(), ["bleu"])[0].value


def single(name: str) -> System:
    return System(name, [Run(name, Path(name))])


def test_runs_with_several_seeds_have_mean_and_deviation() -> None:
    calls = list[int]()
    found = compare([A, B], MATERIAL, progress=lambda: calls.append(1))
    assert len(calls) == 6
    assert [table.name for table in found.metrics] == ["bleu", "chrf", "ter"]
    a, b = found.metrics[0].systems
    expected = [[bleu(OUTPUTS[Path(f"{name}{seed}")]) for seed in (1, 2, 3)] for name in "ab"]
    assert [[run.score for run in row.runs] for row in (a, b)] == [pytest.approx(scores) for scores in expected]
    assert (b.mean, b.deviation) == pytest.approx((statistics.fmean(expected[1]), statistics.stdev(expected[1])))
    assert b.difference == pytest.approx(b.mean - a.mean)
    assert b.estimate.low < b.mean < b.estimate.high
    assert b.tests is not None
    assert b.tests.p_bootstrap < 0.01
    assert b.tests.p_randomization < 0.01
    assert (a.difference, a.tests) == (None, None)


def test_the_order_of_systems_does_not_matter() -> None:
    systems = [single("a1"), single("b1"), single("a2")]
    one, other = compare(systems, MATERIAL), compare(systems[::-1], MATERIAL)
    for forth, back in zip(one.metrics, other.metrics, strict=True):
        assert [row.estimate for row in forth.systems] == [row.estimate for row in back.systems][::-1]
        assert forth.systems[2].tests == back.systems[2].tests
        assert forth.systems[2].difference == -(back.systems[2].difference or 0)
    assert [row.line for row in one.sentences] == [row.line for row in other.sentences]


def test_a_single_run_is_tested_against_the_mean_of_the_baseline() -> None:
    two_seeds = System("a", [A.runs[0], A.runs[2]])
    row = compare([two_seeds, single("a2")], MATERIAL).metrics[0].systems[1]
    measure = Measure("bleu", EvaluationConfig(), OUTPUTS, [REFERENCES])
    mean = np.mean([measure.counts[run.path] for run in two_seeds.runs], axis=0)
    assert row.tests == paired_tests(measure, mean, measure.counts[Path("a2")])
    of_seeds = [bleu(OUTPUTS[run.path]) for run in two_seeds.runs]
    assert row.difference == pytest.approx(bleu(OUTPUTS[Path("a2")]) - statistics.fmean(of_seeds))
    assert row.deviation is None


def test_length_buckets_contain_every_sentence_once() -> None:
    found = compare([A, single("b2")], MATERIAL)
    assert found.unit == "words"
    assert [(bucket.low, bucket.high) for bucket in found.buckets] == [(0, 9), (10, 19), (20, 29), (30, 39)]
    assert sum(bucket.num_sentences for bucket in found.buckets) == len(REFERENCES)
    kept = [i for i, line in enumerate(REFERENCES) if 10 <= len(line.split()) <= 19]
    references = [REFERENCES[i] for i in kept]
    scores = [
        score([OUTPUTS[path][i] for i in kept], references, EvaluationConfig(), ["bleu"])[0].value for path in OUTPUTS
    ]
    by_path = dict(zip(OUTPUTS, scores, strict=True))
    assert found.buckets[1].num_sentences == len(kept)
    expected = [statistics.fmean(by_path[Path(f"a{seed}")] for seed in (1, 2, 3)), by_path[Path("b2")]]
    assert found.buckets[1].scores["bleu"] == pytest.approx(expected)
    assert found.buckets[1].scores.keys() == {"bleu", "chrf", "ter"}


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("သူ လာသည် ငါ သွားမည်", "characters"),
        ("我 来 了", "characters"),
        ("བོད་ཡིག འདི", "characters"),
        ("Donaudampfschifffahrtsgesellschaftskapitän", "words"),
        ("그는 왔다", "words"),
        ("123 456", "words"),
    ],
)
def test_the_unit_of_lengths_follows_the_script(line: str, unit: str) -> None:
    assert _source_lengths([line, ""])[0] == unit


def test_languages_without_spaces_are_measured_in_characters() -> None:
    sources = ["京都は日本の古い都である。" * 2] * 59 + ["都"]
    material = Material("made", sources, [REFERENCES], EvaluationConfig(), OUTPUTS, [], [])
    found = compare([single("a1"), single("b1")], material)
    assert found.unit == "characters"
    assert [(bucket.low, bucket.num_sentences) for bucket in found.buckets] == [(0, 1), (20, 59)]


def test_sentences_are_sorted_by_their_difference() -> None:
    systems = [single("a1"), single("b1")]
    found = compare(systems, MATERIAL, num_sentences=4).sentences
    chrf = [sentence_chrf(OUTPUTS[Path(name)], REFERENCES) for name in ("a1", "b1")]
    spread = [abs(a - b) for a, b in zip(*chrf, strict=True)]
    assert [row.line for row in found] == sorted(range(1, 61), key=lambda line: -spread[line - 1])[:4]
    first, line = found[0], found[0].line - 1
    assert first.chrf == pytest.approx([chrf[0][line], chrf[1][line]])
    assert first.hypotheses == [OUTPUTS[Path("a1")][line], OUTPUTS[Path("b1")][line]]
    assert (first.source, first.references) == (REFERENCES[line], [REFERENCES[line]])
    assert compare(systems, MATERIAL, num_sentences=0).sentences == []
    outputs = {Path("a1"): REFERENCES, Path("b1"): [*REFERENCES[:-1], "x"]}
    nearly_same = Material("made", None, [REFERENCES], EvaluationConfig(), outputs, [], [])
    found_of_two = compare(systems, nearly_same)
    assert [row.line for row in found_of_two.sentences] == [60]
    assert found_of_two.buckets == []


def seeded(folder: Path, *runs: str) -> list[Run]:
    paths = []
    for run in runs:
        name, _, rest = run.partition(":")
        (folder / name).mkdir()
        (folder / name / "config.yaml").write_text(CONFIG.format(rest=rest))
        paths.append(folder / name)
    return open_runs(paths)


def test_runs_that_differ_only_in_their_seed_are_one_system(tmp_path: Path) -> None:
    runs = seeded(
        tmp_path,
        "deep_s2:training: {seed: 2}",
        "wide:training: {seed: 2, max_steps: 7}",
        "deep_s1:training: {seed: 1, trackers: [tensorboard]}",
        "deep_s10:training: {seed: 10}",
    )
    systems = group_runs(runs)
    assert [(system.name, [run.name for run in system.runs]) for system in systems] == [
        ("deep", ["deep_s1", "deep_s2", "deep_s10"]),
        ("wide", ["wide"]),
    ]
    assert config_differences(systems) == {"training.max_steps": [100000, 7]}
    assert [system.name for system in group_runs(runs, by_seed=False)] == [run.name for run in runs]


@pytest.mark.parametrize(("runs", "expected"), [
    (("size=4,seed=1:1", "size=4,seed=2:2"), ["size=4"]),
    (("seed=11,size=4:1", "seed=21,size=4:2"), ["size=4"]),
    (("pre-1-seed-1:1", "pre-1-seed-10:2"), ["pre-1"]),
    (("1:1", "2:2"), ["study"]),
    (("seed=1:1", "seed=2:2", "seed=3:3"), ["study"]),
    (("s1:1", "s2:2"), ["study"]),
    (("run1:1", "run2:2"), ["run"]),
    (("first:1", "second:2"), ["first"]),
    (("one:1", "copy:1", "other:2"), ["one", "copy", "other"]),  # two runs with the same seed
])  # fmt: skip
def test_system_names(tmp_path: Path, runs: tuple[str, ...], expected: list[str]) -> None:
    study = tmp_path / "study"
    study.mkdir()
    named = [(name, f"training: {{seed: {seed}}}") for name, _, seed in (run.rpartition(":") for run in runs)]
    assert [system.name for system in group_runs(seeded(study, *map(":".join, named)))] == expected


def test_seeds_in_several_folders_are_named_by_their_folders(tmp_path: Path) -> None:
    runs = []
    for name, steps in (("pre", 5), ("post", 6)):
        (tmp_path / name).mkdir()
        settings = [f"seed={seed}:training: {{seed: {seed}, max_steps: {steps}}}" for seed in (1, 2)]
        runs += [run.path for run in seeded(tmp_path / name, *settings)]
    assert [system.name for system in group_runs(open_runs(runs))] == ["pre", "post"]


def test_paths_that_are_not_distinct_scored_runs_raise_errors(tmp_path: Path) -> None:
    run, bare = make_run(tmp_path / "run", REFERENCES), tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text(CONFIG.format(rest=""))
    with pytest.raises(DataError, match=r"bare: no scores yet; `mtformer eval .*bare` computes them"):
        common_sets(open_runs([run, bare]))
    with pytest.raises(DataError, match="run: given twice; leave one out, as a run cannot be compared with itself"):
        open_runs([run, run / "eval" / ".."])
    with pytest.raises(DataError, match="is a file, not a run directory; to compare files of hypotheses, add --ref"):
        open_runs([run, run / "config.yaml"])
    with pytest.raises(CheckpointError, match="not a run directory or bundle"):
        open_runs([run, tmp_path])


def test_only_test_sets_scored_by_all_runs_are_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = make_run(tmp_path / "a", REFERENCES), make_run(tmp_path / "b", REFERENCES, "training: {max_steps: 3}")
    save(RunDir(a).evaluation("more"), REFERENCES, [REFERENCES])
    runs = open_runs([a, b])
    with caplog.at_level("INFO", "mtformer"):
        assert common_sets(runs) == ["small"]
    assert "ignored test sets on which some runs have no scores: more" in caplog.text
    assert common_sets(runs, ["small"]) == ["small"]
    with pytest.raises(DataError, match=r"b: no scores on 'more', only on small; run `mtformer eval`"):
        common_sets(runs, ["more"])
    c = make_run(tmp_path / "c", REFERENCES, name="other")
    with pytest.raises(DataError, match=r"no test set on which all runs have scores: .*b has small; .*c has other"):
        common_sets(open_runs([b, c]))


def test_incomparable_cards_are_rejected_unless_forced(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", REFERENCES)
    folder = RunDir(make_run(tmp_path / "second", REFERENCES)).evaluation("small")
    runs = open_runs([first, tmp_path / "second"])
    assert read_material("small", runs).ignored == []

    save(folder, REFERENCES, [REFERENCES[::-1]], evaluation=EvaluationConfig(lowercase=True))
    with pytest.raises(DataError, match=r"first and .*second on small: .*different references; .*signature.*; --force"):
        read_material("small", runs)
    forced = read_material("small", runs, force=True)
    assert len(forced.ignored) == 1
    assert "different references" in forced.ignored[0]
    assert (forced.references, forced.evaluation) == ([REFERENCES], EvaluationConfig())

    save(folder, REFERENCES[:9], [REFERENCES[:9]])
    for force in (False, True):
        with pytest.raises(
            DataError, match=r"60 and 9 sentences.*; only translations of the same lines can be compared"
        ):
            read_material("small", runs, force)


def test_different_decoding_settings_are_rejected_unless_forced(tmp_path: Path) -> None:
    decoding = DecodingConfig(beam_size=2, beam_tokens=64)
    paths = [make_run(tmp_path / "first", REFERENCES), make_run(tmp_path / "second", REFERENCES, decoding=decoding)]
    runs = open_runs(paths)
    with pytest.raises(DataError, match=r"first and .*second on small: decoding\.beam_size 5 and 2; --force compares"):
        read_material("small", runs)
    material = read_material("small", runs, force=True)
    assert [line.partition(" on small: ")[2] for line in material.ignored] == ["decoding.beam_size 5 and 2"]
    assert material.notes == ["first and second: decoding.beam_tokens None and 64"]
    found = compare(group_runs(runs), material)
    assert (found.ignored, found.notes) == (material.ignored, material.notes)


def test_files_are_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "ref").write_bytes("\ufeffDas Haus.\r\nEin\u2028Hund.\n".encode())
    (tmp_path / "hyp").write_bytes(b"Das Haus.\n\n")
    (tmp_path / "other").write_bytes(b"a\nb")
    runs, material = read_files([tmp_path / "hyp", tmp_path / "other"], [tmp_path / "ref"], None, EvaluationConfig())
    assert material.references == [["Das Haus.", "Ein\u2028Hund."]]
    assert [material.outputs[run.path] for run in runs] == [["Das Haus.", ""], ["a", "b"]]
    assert material.sources is None


@pytest.mark.parametrize(("content", "message"), [
    (b"a\n", r"files of unequal length: .*ref has 2, .*good has 2, .*bad has 1 lines; give files"),
    (b"\xff\nb\n", "bad:1: not UTF-8"),
    (None, "bad: no such file"),
])  # fmt: skip
def test_files_with_errors_raise_one_line_errors(tmp_path: Path, content: bytes | None, message: str) -> None:
    for name in ("ref", "good"):
        (tmp_path / name).write_text("x\ny\n")
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_files([tmp_path / "good", tmp_path / "bad"], [tmp_path / "ref"], None, EvaluationConfig())
    with pytest.raises(DataError, match="is a folder; with --ref all arguments are files"):
        read_files([tmp_path / "good", tmp_path], [tmp_path / "ref"], None, EvaluationConfig())
    (tmp_path / "empty").touch()
    (tmp_path / "empty2").touch()
    with pytest.raises(DataError, match="no lines to compare"):
        read_files([tmp_path / "empty"], [tmp_path / "empty2"], None, EvaluationConfig())
