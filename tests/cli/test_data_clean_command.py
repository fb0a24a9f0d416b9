"""`mtformer data clean`: arguments, files written, and exit codes."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from program import invoke
from safetensors.torch import save_file

from mtformer.config.loading import dump_config, load_config
from mtformer.config.schema import Config
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

LANGUAGES = ("--src-lang", "en", "--tgt-lang", "de")
EN = ["a dog runs", "", "the small house", "same text", "the small house", "35 trees", "a stone"]
DE = ["ein Hund rennt", "leer", "das kleine Haus", "Same text.", "das kleine Haus", "43 Bäume", "ein Stein"]
KEPT = ["a dog runs", "the small house", "a stone"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return two parallel files with four pairs that must be removed."""
    paths = (tmp_path / "a.en", tmp_path / "a.de")
    for path, lines in zip(paths, (EN, DE), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def backward(trained: tuple[Path, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a German-English bundle with the tokenizer of the finished run and random weights."""
    run, forward = RunDir(tmp_path_factory.mktemp("backward") / "bundle"), RunDir(trained[0])
    tokenizers = TokenizerPair.load(forward.tokenizer)
    run.path.mkdir()
    tokenizers.save(run.tokenizer)
    config = load_config(forward.config).config
    tree = {**config.model_dump(), "data": {"src_lang": "de", "tgt_lang": "en", "filters": {"max_tokens": 100}}}
    config = Config.model_validate(tree)
    run.config.write_text(dump_config(config), encoding="utf-8")
    torch.manual_seed(1)
    model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, run.bundle_weights)
    write_checksums(run.path)
    return run.path


def kept(folder: Path, name: str = "kept.en") -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def test_two_files_are_cleaned(files: tuple[Path, Path], tmp_path: Path) -> None:
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert kept(tmp_path / "out") == KEPT
    assert kept(tmp_path / "out", "removed.tsv") == [
        "empty\t2\t\tleer",
        "identical\t4\tsame text\tSame text.",
        "duplicate\t5\tthe small house\tdas kleine Haus",
        "different numbers\t6\t35 trees\t43 Bäume",
    ]
    assert "max_tokens and max_length_ratio are not applied without a tokenizer" in result.stderr
    assert "duplicate" in result.stderr
    assert " tokens  " not in result.stderr
    assert "warning: the filters removed more than data.filters.max_filtered_share (0.5)" in result.stderr
    assert result.stderr.endswith(f"written: {tmp_path}/out\n")
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["kept"] == 3


def test_overrides_change_the_filters(files: tuple[Path, Path], tmp_path: Path) -> None:
    overrides = ["data.filters.drop_identical=false", "data.filters.drop_different_numbers=false"]
    result = invoke("data", "clean", *files, tmp_path / "out", *overrides, *LANGUAGES, "--gz")
    assert result.exit_code == 0, result.stderr
    lines = gzip.decompress((tmp_path / "out" / "kept.en.gz").read_bytes()).decode().split("\n")[:-1]
    assert lines == ["a dog runs", "the small house", "same text", "35 trees", "a stone"]
    assert "warning: " not in result.stderr


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.jsonl", "pairs.jsonl.gz", "k.a=v 😀 'it': \"x\".tsv"])
def test_one_file_is_cleaned(name: str, tmp_path: Path) -> None:
    rows = zip(EN, DE, strict=True)
    lines = [json.dumps({"en": en, "de": de}) if "jsonl" in name else f"{en}\t{de}" for en, de in rows]
    data = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    result = invoke("data", "clean", tmp_path / name, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "out") == KEPT


def test_the_training_data_of_a_config_are_cleaned(corpus: Path, tmp_path: Path) -> None:
    result = invoke("data", "clean", corpus / "small.yaml", tmp_path / "out", "data.filters.max_repeats=4")
    assert result.exit_code == 0, result.stderr
    sources, targets = (kept(corpus, f"train.{language}") for language in ("en", "de"))
    pairs = set(zip(sources, targets, strict=True))
    found = list(zip(kept(tmp_path / "out"), kept(tmp_path / "out", "kept.de"), strict=True))
    assert set(found) <= pairs
    assert len(found) == len(set(found)) > 500


def test_tokenizers_of_a_run_and_of_a_folder(
    trained: tuple[Path, object], files: tuple[Path, Path], tmp_path: Path
) -> None:
    result = invoke("data", "clean", trained[0], tmp_path / "out", "data.filters.max_tokens=10")
    assert result.exit_code == 0, result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["left_out"]["too long"] > 0
    assert "source tokens" in result.stderr
    tokenizer = TokenizerPair.load(RunDir(trained[0]).tokenizer).src
    assert report["tokens"]["src"] == sum(map(len, tokenizer.encode(kept(tmp_path / "out"))))
    options = ["--tokenizer", RunDir(trained[0]).tokenizer, "data.filters.max_tokens=1", *LANGUAGES]
    result = invoke("data", "clean", *files, tmp_path / "two", *options)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "two") == []
    assert f"warning: {tmp_path}/two: the filters kept no pairs; see removed.tsv" in result.stderr


def per_token(run: Path, files: tuple[Path, Path]) -> list[float]:
    """Return the scores of the lines according to `mtformer score`."""
    result = invoke("score", run, *files, "--json", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    scored = [json.loads(line) for line in result.stdout.splitlines()]
    return [one["log_probability"] / len(one["pieces"]) for one in scored]


def test_scores_from_one_model(trained: tuple[Path, object], files: tuple[Path, Path], tmp_path: Path) -> None:
    run, out = trained[0], tmp_path / "out"
    result = invoke("data", "clean", *files, out, *LANGUAGES, "--score-with", run, "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    scores = [float(line) for line in kept(out, "scores.tsv")]
    assert scores == pytest.approx(per_token(run, (out / "kept.en", out / "kept.de")), abs=1e-4)
    middle = (sorted(scores)[0] + sorted(scores)[1]) / 2
    options = ["--score-with", run, f"--min-score={middle}", "--device", "cpu"]
    result = invoke("data", "clean", *files, tmp_path / "two", *LANGUAGES, *options)
    assert result.exit_code == 0, result.stderr
    worst = KEPT[scores.index(min(scores))]
    assert kept(tmp_path / "two") == [line for line in KEPT if line != worst]
    assert any(row.startswith("low score\t") for row in kept(tmp_path / "two", "removed.tsv"))


def test_scores_from_two_models(
    trained: tuple[Path, object], backward: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    both = ["--score-with", trained[0], "--score-with", backward, "--device", "cpu"]
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES, *both)
    assert result.exit_code == 0, result.stderr
    rows = [list(map(float, line.split("\t"))) for line in kept(tmp_path / "out", "scores.tsv")]
    texts = tmp_path / "out" / "kept.en", tmp_path / "out" / "kept.de"
    assert [row[1] for row in rows] == pytest.approx(per_token(trained[0], texts), abs=1e-4)
    assert [row[2] for row in rows] == pytest.approx(per_token(backward, texts[::-1]), abs=1e-4)
    for score, forward, back in rows:
        assert score == pytest.approx(math.exp(-(abs(forward - back) - (forward + back) / 2)), abs=1e-4)
    result = invoke("data", "clean", *files, tmp_path / "two", *LANGUAGES, *both, "--keep-share", 0.34)
    assert result.exit_code == 0, result.stderr
    best = max(range(len(rows)), key=lambda number: rows[number][0])
    assert kept(tmp_path / "two") == [KEPT[best]]


def test_pairs_that_are_too_long_for_the_model(trained: tuple[Path, object], tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(f"a dog\tein Hund\n{'a dog runs ' * 300}\t{'ein Hund rennt ' * 300}\n")
    options = ["--score-with", trained[0], "--device", "cpu", *LANGUAGES]
    result = invoke("data", "clean", tmp_path / "a.tsv", tmp_path / "out", *options)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "out", "scores.tsv")[1] == "nan"
    assert "1 pairs have more tokens than a model supports: nan in scores.tsv" in result.stderr
    result = invoke("data", "clean", tmp_path / "a.tsv", tmp_path / "two", *options, "--keep-share", 1)
    assert kept(tmp_path / "two") == ["a dog"]


@pytest.mark.parametrize(("options", "message"), [
    (["{0}/a.en", *LANGUAGES], "give a config or files, then the output folder"),
    (["{0}/a.en", "{0}/a.de", "{0}", *LANGUAGES], "{0}: already exists; choose another folder, or delete it"),
    (["{0}/a.en", "{0}/a.de", "{0}/out", *LANGUAGES, "--keep-share", "0.5"], "name a model with --score-with"),
    (["{0}/a.en", "{0}/a.de", "{0}/out", *LANGUAGES, *["--score-with", "x"] * 3], "give one run, or two"),
    (["{0}/a.en", "{0}/a.de", "{0}/out", *LANGUAGES, "--score-with", "x"], "x: not a run directory or bundle"),
    (["{0}/a.en", "{0}/a.de", "{0}/out", *LANGUAGES, "--score-with", "x", "--keep-share", "2"], "share 2: must be"),
    (["{0}/c.yaml", "{0}/out", "data.train=[]"], "data.train: no training data; name at least one source"),
    (["{0}/c.yaml", "{0}/out", "data.train.0.tgt_lang=fr"], "is en-de, not en-fr; clean one direction"),
])  # fmt: skip
def test_user_errors_are_reported_in_one_line(
    options: list[str], message: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(
        f"data: {{src_lang: en, tgt_lang: de, language_tags: source,\n  train: [{{src: {files[0]}, tgt: {files[1]}}}, "
        f"{{src: {files[0]}, tgt: {files[1]}}}]}}\n"
    )
    result = invoke("data", "clean", *(option.format(tmp_path) for option in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("error: ") == 1
    assert message.format(tmp_path) in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_for_another_direction_is_refused(backward: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES, "--score-with", backward)
    assert (result.exit_code, result.stderr) == (2, f"error: {backward}: translates de-en, not en-de\n")


def test_without_a_terminal_only_the_report_is_printed_and_torch_is_not_imported(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    program = "import sys, mtformer.cli.app as a\ntry: a.main()\nfinally: print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "data", "clean", *files, tmp_path / "out", *LANGUAGES]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
    assert "\r" not in done.stderr
    assert "it/s" not in done.stderr


@pytest.mark.parametrize(
    ("name", "lines", "kept_lines", "invalid"),
    [
        ("a.tsv", [b"a dog\tein Hund", b"caf\xe9\tCaf\xc3\xa9", b"no tab", b"\xff\xfe\t\xed\xa0\x80"], 1, [2, 3, 4]),
        ("a.jsonl", [b'{"en": "a dog", "de": "ein Hund"}', b'{"en": "x', b"[1]", b'{"en": "\xff"}'], 1, [2, 3, 4]),
    ],
)
def test_lines_that_training_refuses_are_removed_and_counted(
    name: str, lines: list[bytes], kept_lines: int, invalid: list[int], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    result = invoke("data", "clean", tmp_path / name, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert len(kept(tmp_path / "out")) == kept_lines
    rows = [row.split("\t")[:2] for row in kept(tmp_path / "out", "removed.tsv")]
    assert rows == [["invalid line", str(number)] for number in invalid]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (report["read"], report["left_out"]) == (4, {"invalid line": 3})


def test_an_undecodable_line_of_parallel_files_is_removed_from_both(files: tuple[Path, Path], tmp_path: Path) -> None:
    lines = files[1].read_bytes().split(b"\n")
    lines[2] = b"das kleine H\xe4us"
    files[1].write_bytes(b"\n".join(lines))
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "out") == ["a dog runs", "the small house", "a stone"]
    assert "invalid line\t3\tthe small house\tdas kleine H\ufffdus" in kept(tmp_path / "out", "removed.tsv")
