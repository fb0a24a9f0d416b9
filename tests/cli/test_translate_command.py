"""`mtformer translate`: output formats, files and resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from program import invoke
from typer.testing import Result

from mtformer.cli import line_files
from mtformer.data.corpus.readers import SUFFIXES, create_bytes, open_bytes
from mtformer.decoding.attention_maps import attention_maps
from mtformer.decoding.translator import Translator

PROGRAM = "import mtformer.cli.line_files as f; f.LINES_AT_ONCE = 40; from mtformer.cli.app import main; main()"
"""Code that runs the program with small blocks, for a separate process."""
PATIENCE_SECONDS = 300
"""Time after which a test fails if a program does not answer."""


@pytest.fixture
def run(trained: tuple[Path, Result]) -> Path:
    """Return the finished run, which these tests do not change."""
    return trained[0]


@pytest.fixture
def lines(corpus: Path) -> list[str]:
    return (corpus / "test.en").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def translator(run: Path) -> Translator:
    return Translator.load(run, device="cpu")


def translate(run: Path, *options: object, stdin: str | bytes = "") -> Result:
    result = invoke("translate", run, *options, stdin=stdin.encode() if isinstance(stdin, str) else stdin)
    assert result.exit_code == 0, result.stderr
    return result


def refusal(*arguments: object) -> str:
    """Return the only error line of a call that must fail."""
    result = invoke("translate", *arguments, stdin=b"a\n")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@contextmanager
def conversation(*arguments: object) -> Iterator[Any]:
    """Start the program with pipes, and kill it if it does not answer in time or is still running at the end."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen([sys.executable, "-m", "mtformer", *map(str, arguments)], **streams)
    guard = threading.Timer(PATIENCE_SECONDS, program.kill)
    guard.start()
    try:
        yield program
    finally:
        guard.cancel()
        program.kill()
        program.wait()
        for stream in (program.stdin, program.stdout, program.stderr):
            with suppress(BrokenPipeError):
                stream.close()


def text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_plain_text_equals_the_python_interface(run: Path, lines: list[str], translator: Translator) -> None:
    expected = [one.text for one in translator.translate(lines, beam_size=3)]
    assert translate(run, "--beam-size", 3, stdin=text_of(lines)).stdout == text_of(expected)


def test_blocks_do_not_change_translations(run: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--sampling", "--seed", 3, "--json")
    whole = translate(run, *options, stdin=text_of(lines)).stdout
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 3)
    monkeypatch.setattr(line_files, "BYTES_AT_ONCE", 100)
    parts = translate(run, *options, stdin=text_of(lines)).stdout
    assert [json.loads(line)["text"] for line in parts.splitlines()] == [
        json.loads(line)["text"] for line in whole.splitlines()
    ]


def test_json_has_the_documented_fields(run: Path, lines: list[str], translator: Translator) -> None:
    given, alpha = [lines[0], "", lines[1], f"{lines[2]} {lines[3]}"], translator.decoding.length_penalty
    shown = translate(run, "--json", "--json-attention", "--alignment", "--n-best", 2, stdin=text_of(given)).stdout
    objects = [json.loads(line) for line in shown.splitlines()]
    for found, one in zip(objects, translator.translate(given, n_best=2, attention=True), strict=True):
        assert found["text"] == one.text
        assert found["score"] == pytest.approx(one.score)
        assert found["log_probability"] == pytest.approx(one.log_probability)
        assert found["length"] == len(one.pieces) == len(found["pieces"])
        assert found["score"] * found["length"] ** alpha == pytest.approx(found["log_probability"], abs=1e-4)
        assert found["pieces"] == one.pieces
        assert found["token_log_probabilities"] == pytest.approx(one.token_log_probabilities, abs=1e-5)
        assert found["flags"] == list(one.flags)
        assert len(found.get("alternatives", [])) == len(one.alternatives)
    assert objects[1] == {
        "text": "", "score": 0.0, "log_probability": 0.0, "length": 0, "pieces": [], "token_log_probabilities": [],
        "flags": [], "alignment": [], "attention": None,
    }  # fmt: skip
    for found in (objects[0], *objects[0]["alternatives"]):
        attention = found["attention"]
        assert attention.keys() == {"src_pieces", "tgt_pieces", "weights"}
        assert "".join(attention["src_pieces"]).replace("▁", " ").strip() == lines[0]
        assert attention["tgt_pieces"] == found["pieces"][:-1]
        assert [len(row) for row in attention["weights"]] == [len(attention["src_pieces"])] * (found["length"] - 1)
        words = found["text"].split()
        assert [tgt for _, tgt in found["alignment"]] == list(range(len(words)))
        assert all(0 <= src < len(lines[0].split()) for src, _ in found["alignment"])
    plain = json.loads(translate(run, "--json", stdin=text_of(given[:1])).stdout)
    assert plain.keys() == {
        "text", "score", "log_probability", "length", "pieces", "token_log_probabilities", "flags"
    }  # fmt: skip


def test_json_of_a_line_that_was_split(run: Path, lines: list[str]) -> None:
    long = " ".join(lines * 3)
    found = json.loads(translate(run, "--json", "--json-attention", "--alignment", stdin=long + "\n").stdout)
    attention = found["attention"]
    ends = [start + len(row) for start, row in zip(attention["src_starts"], attention["weights"], strict=True)]
    assert max(ends) == len(attention["src_pieces"])
    assert len(set(attention["src_starts"])) > 1
    assert max(src for src, _ in found["alignment"]) > len(long.split()) // 2
    assert found["text"].count("\n") == 0


def test_n_best_lines_have_the_format_of_moses(run: Path, lines: list[str], translator: Translator) -> None:
    shown = translate(run, "--n-best", 2, stdin=text_of([lines[0], "", lines[1]])).stdout.splitlines()
    expected = translator.translate([lines[0], "", lines[1]], n_best=2)
    rows = [re.fullmatch(r"(\d+) \|\|\| (.*) \|\|\| (-?\d+\.\d{6})", line) for line in shown]
    found = [(int(row[1]), row[2], float(row[3])) for row in rows if row]
    assert found == [
        (number, each.text, pytest.approx(each.score, abs=1e-5))
        for number, one in enumerate(expected) for each in (one, *one.alternatives)
    ]  # fmt: skip
    assert [number for number, _, _ in found] == [0, 0, 1, 2, 2]
    aligned = translate(run, "--n-best", 2, "--alignment", stdin=lines[0] + "\n").stdout.splitlines()
    assert all(re.fullmatch(r"0 \|\|\| .* \|\|\| -\d+\.\d{6} \|\|\| (\d+-\d+( \d+-\d+)*)?", line) for line in aligned)


def test_alignment_follows_the_text(run: Path, lines: list[str], translator: Translator) -> None:
    shown = translate(run, "--alignment", stdin=text_of([lines[0], ""])).stdout.split("\n")
    one = translator.translate(lines[:1], attention=True)[0]
    assert one.attention is not None
    assert shown[0] == f"{one.text} ||| " + " ".join(f"{src}-{tgt}" for src, tgt in one.attention.alignment)
    assert shown[1] == " ||| "


def test_prefixes_and_phrases_are_read_from_files(run: Path, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("Die Frau\n\nEin\n", encoding="utf-8")
    (tmp_path / "required").write_text("\nHund\tKatze\n\t\n", encoding="utf-8")
    files = [
        "--prefixes",
        tmp_path / "prefixes",
        "--require",
        tmp_path / "required",
    ]
    result = translate(run, *files, "--beam-size", 4, stdin=text_of(lines[:3]))
    found = result.stdout.splitlines()
    assert found[0].startswith("Die Frau")
    assert found[2].startswith("Ein")
    assert "Hund" in found[1]
    assert "Katze" in found[1]


def test_unsatisfied_constraints_are_reported(run: Path, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "required").write_text("☃\n", encoding="utf-8")
    result = translate(run, "--require", tmp_path / "required", stdin=lines[0] + "\n")
    assert "warning: 1 of 1 translations lacks a required phrase: line 1\n" in result.stderr
    shown = translate(run, "--require", tmp_path / "required", "--json", stdin=lines[0] + "\n")
    assert "missing: ☃" in json.loads(shown.stdout)["flags"]
    assert "warning: 1 of 1 translations lacks a required phrase" in shown.stderr


def test_flagged_lines_are_named_at_the_end(run: Path, lines: list[str], tmp_path: Path) -> None:
    phrases = ["", "☃", "", "☃\t☂"]
    (tmp_path / "required").write_text(text_of(phrases), encoding="utf-8")
    result = translate(run, "--require", tmp_path / "required", stdin=text_of([lines[0]] * 4))
    assert "warning: 2 of 4 translations lack a required phrase: lines 2 and 4\n" in result.stderr

    (tmp_path / "required").write_text(text_of(phrases * 7), encoding="utf-8")
    options = ("--require", tmp_path / "required", "--beam-size", 1)
    result = translate(run, *options, stdin=text_of([lines[0]] * 28))
    numbers = "2, 4, 6, 8, 10, 12, 14, 16, 18, 20"
    expected = f"warning: 14 of 28 translations lack a required phrase: lines {numbers} and 4 more"
    assert f"{expected} (--json shows the flags of each line)\n" in result.stderr
    result = translate(run, *options, "--json", stdin=text_of([lines[0]] * 28))
    assert f"{expected}\n" in result.stderr


def test_html_has_one_line_per_fragment(run: Path, lines: list[str], translator: Translator, tmp_path: Path) -> None:
    plain = [one.text for one in translator.translate(lines[:2])]
    given = [f"<p>{lines[0]}</p><p>{lines[1]}</p>", "", "&#10;<br>", f"<b>{lines[0]}"]
    expected = [f"<p>{plain[0]}</p><p>{plain[1]}</p>", "", "&#10;<br>", f"<b>{plain[0]}</b>"]
    result = translate(run, "--html", stdin=text_of(given))
    assert result.stdout == text_of(expected)
    assert "1 of 4 translations contains tags that were unclosed or wrongly nested" in result.stderr
    (tmp_path / "in").write_text(text_of(given), encoding="utf-8")
    options = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    translate(run, *options, "--html")
    assert (tmp_path / "out").read_text(encoding="utf-8") == text_of(expected)
    assert "was written with html True, not None" in refusal(run, *options, "--continue")
    shown = json.loads(translate(run, "--html", "--json", stdin=text_of(given[-1:])).stdout)
    assert (shown["text"], shown["flags"][-1]) == (expected[-1], "repaired tags")


def test_required_phrases_of_html_belong_to_the_text_of_the_line(run: Path, lines: list[str], tmp_path: Path) -> None:
    html = tmp_path / "html"
    phrases = tmp_path / "phrases"
    options = ("--html", "--input", html, "--require", phrases)
    html.write_text(text_of([f"<p>{lines[0]}</p>", "<br>", f"<p>{lines[0]}</p><p>{lines[1]}</p>"]), encoding="utf-8")
    phrases.write_text("☃\n☃\n\n", encoding="utf-8")
    shown = translate(run, *options, "--json").stdout.splitlines()
    flags = [json.loads(line)["flags"] for line in shown]
    assert ["missing: ☃" in flags_of_line for flags_of_line in flags] == [True, True, False]

    phrases.write_text("\n\nx\n", encoding="utf-8")
    assert refusal(run, *options).startswith("error: line 3: has 2 texts, and it is not known which one needs")
    html.write_text("<!DOCTYPE html>\n<p>a\n</html>\n", encoding="utf-8")
    assert refusal(run, *options).startswith(
        "error: the input is one HTML page, and --require has phrases for each line"
    )


def test_a_page_of_several_lines_is_translated_as_a_whole(
    run: Path, lines: list[str], translator: Translator, tmp_path: Path
) -> None:
    first, second = (one.text for one in translator.translate(lines[:2]))
    page = ["", "<!DOCTYPE html>", "<html><body>", "<p>{}", "</p>", "<p>{}</p>", "</body></html>", ""]
    result = translate(run, "--html", stdin=text_of(page).format(*lines[:2]))
    assert (result.stdout, "repaired" in result.stderr) == (text_of(page).format(first, second), False)
    whole = "<!DOCTYPE html><html><p>{}</p></html>"  # on one line each, so they are separate
    result = translate(run, "--html", stdin=text_of([whole, whole]).format(*lines[:2]))
    assert result.stdout == text_of([whole, whole]).format(first, second)
    (tmp_path / "page").write_text(text_of(page).format(*lines[:2]), encoding="utf-8")
    translate(run, "--html", "--input", tmp_path / "page", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_text(encoding="utf-8") == text_of(page).format(first, second)


def test_a_glossary_is_read_from_a_file(run: Path, lines: list[str], tmp_path: Path) -> None:
    word = next(word for word in lines[0].split() if word.isalpha())
    (tmp_path / "terms").write_text(f"{word} \t Katze\nnichts\tNichts\r\n", encoding="utf-8")
    (tmp_path / "required").write_text("Hund\n", encoding="utf-8")
    options = ("--glossary", tmp_path / "terms", "--require", tmp_path / "required", "--beam-size", 6)
    found = translate(run, *options, stdin=lines[0] + "\n").stdout
    assert "Hund" in found
    assert "Katze" in found
    (tmp_path / "terms").write_text(f"{word}\tKatze\n", encoding="utf-8-sig")
    assert "Katze" in translate(run, *options, stdin=lines[0] + "\n").stdout
    for wrong in ("c\t ", "c", "c\td\te", "\td", "", "a\tc"):
        (tmp_path / "terms").write_text(f"a\tb\n{wrong}\n", encoding="utf-8")
        message = refusal(tmp_path / "no run", "--glossary", tmp_path / "terms")
        assert message.startswith(f"error: {tmp_path}/terms:2: give a new source term, a tab and a target term, not")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "--alignment"], "--html cannot be combined with"),
        (["--html", "--prefixes", "x"], "--html cannot be combined with"),
        (["--html", "--n-best", "2"], "--html needs a search for one translation"),
        (["--html", "--sampling"], "--html needs a search for one translation"),
        (["--keep", "numbers", "--beam-size", "1"], "keep has an effect only with beam_size above 1"),
        (["--glossary", "nowhere"], "nowhere: no such file"),
        (["--json-attention"], "--json-attention requires --json"),
        (["--targets", "x"], "--targets requires --attention FILE"),
        (["--attention", "maps.html", "--output", "x", "--continue"], "--attention needs all lines"),
        (["--continue"], "--continue requires a file to resume; name it with --output"),
        (["--continue", "--output", "/dev/null"], "--continue requires a file to resume"),
        (["--continue", "--output", "/dev/stdout"], "--continue requires a file to resume"),
        (["--output", "/"], "--output / is a folder; name a file"),
        (["--input", "nowhere"], "nowhere: no such file"),
        (["--beam-size", "0"], "error: --beam-size: must be at least 1 and at most 1000, not 0"),
        (["--n-best", "9"], "n_best 9 is above beam_size 2"),
        (["--top-k", "5"], "top_k has an effect only with sampling: true or mbr_samples; also set"),
    ],
)
def test_inconsistent_options_are_reported_in_one_line(run: Path, options: list[str], message: str) -> None:
    assert message in refusal(run, *options)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_compressed_files_are_read_and_written(run: Path, lines: list[str], tmp_path: Path, suffix: str) -> None:
    files = {"in": lines[:3], "prefixes": ["Die Frau", "", "Ein"], "required": ["", "Hund", ""]}
    runs = []
    for ending in ("", suffix):
        for name, content in files.items():
            with create_bytes(tmp_path / f"{name}{ending}") as file:
                file.write(text_of(content).encode())
        source, prefixes, required = (tmp_path / f"{name}{ending}" for name in files)
        options = ["--input", source, "--prefixes", prefixes, "--require", required]
        translate(run, *options, "--output", tmp_path / f"out{ending}")
        runs.append(translate(run, *options).stdout)
        os.mkfifo(tmp_path / f"pipe{ending}")
        with ThreadPoolExecutor() as pool:
            piped = pool.submit((tmp_path / f"pipe{ending}").read_bytes)
            translate(run, *options, "--output", tmp_path / f"pipe{ending}")
        (tmp_path / f"piped{ending}").write_bytes(piped.result(timeout=30))
    assert runs[0] == runs[1] == (tmp_path / "out").read_text(encoding="utf-8")
    assert runs[0].startswith("Die Frau")
    for name in (f"out{suffix}", "piped", f"piped{suffix}"):
        with open_bytes(tmp_path / name) as file:
            assert file.read().decode() == runs[0]
    assert (tmp_path / f"out{suffix}").read_bytes() != runs[0].encode()


def test_a_pipe_as_input(run: Path, lines: list[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(text_of(lines)))
    writer.start()
    found = translate(run, "--input", pipe).stdout
    writer.join(timeout=30)
    assert found == translate(run, stdin=text_of(lines)).stdout


def test_no_file_is_written_after_an_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("a\n" * 3)
    refusal(run, "--prefixes", tmp_path / "prefixes", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_translation_shows_how_to_resume(
    run: Path, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 5)
    whole, stop_after = Translator.translate, 2

    def interrupted(self: Translator, *arguments: Any, **named: Any) -> Any:
        if named["first_line"] >= 5 * stop_after:
            raise KeyboardInterrupt
        return whole(self, *arguments, **named)

    monkeypatch.setattr(Translator, "translate", interrupted)
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text(text_of(lines))
    result = invoke("translate", run, "--input", source, "--output", target)
    assert result.exit_code == 130
    assert f"finished lines are in {tmp_path}/out.partial; repeat the command with --continue" in result.stderr
    assert not target.exists()
    stop_after = 100
    result = invoke("translate", run, "--input", source, "--output", target, "--continue", "--beam-tokens", 100)
    assert "continuing after line 10" in result.stderr
    assert target.read_text() == translate(run, stdin=text_of(lines)).stdout
    result = invoke("translate", run, "--input", source, "--output", target, "--continue")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{target}: already complete\n")
    source.write_text(text_of([*lines, "A dog."]))
    words = ("translate", run, "--input", source, "--output", target, "--continue", "--backend", "ctranslate2")
    result = invoke(*words)
    assert (result.exit_code, "was written with backend None, not ctranslate2" in result.stderr) == (2, True)


def test_an_interrupted_translation_of_a_pipe_resumes(
    run: Path, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer pauses at other lines than before."""
    pipe, target, whole = tmp_path / "pipe", tmp_path / "out", Translator.translate
    os.mkfifo(pipe)

    def write(num_at_once: int) -> None:
        with pipe.open("w") as file:
            for start in range(0, len(lines), num_at_once):
                file.write(text_of(lines[start : start + num_at_once]))
                file.flush()
                time.sleep(0.1)

    def interrupted(self: Translator, *arguments: Any, **named: Any) -> Any:
        if named["first_line"] + len(arguments[0]) > 12:
            raise KeyboardInterrupt
        return whole(self, *arguments, **named)

    words = ("translate", run, "--input", pipe, "--output", target)
    with ThreadPoolExecutor(1) as background:
        background.submit(write, 5)
        with monkeypatch.context() as patch:
            patch.setattr(Translator, "translate", interrupted)
            assert invoke(*words).exit_code == 130
    num_done = lines_done(target)
    assert 0 <= num_done <= 12
    with ThreadPoolExecutor(1) as background:
        background.submit(write, 7)
        result = invoke(*words, "--continue")
    assert result.exit_code == 0, result.stderr
    assert f"continuing after line {num_done}\n" in result.stderr
    assert target.read_text() == translate(run, stdin=text_of(lines)).stdout


def lines_done(target: Path) -> int:
    try:
        state: dict[str, int] = json.loads((target.parent / f".{target.name}.mtformer.json").read_text())
    except (OSError, ValueError):
        return 0
    return state["lines"]


def test_a_killed_translation_resumes_to_the_same_bytes(run: Path, lines: list[str], tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text(text_of([f"{line} {number}" for number, line in enumerate(lines * 20)]), encoding="utf-8")
    options = ["translate", str(run), "--input", str(source), "--sampling", "--json", "--beam-tokens", "400"]
    whole = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options, "--output", str(tmp_path / "whole")],
        capture_output=True, timeout=900, check=True,
    )  # fmt: skip
    assert whole.stdout == b""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *options, "--output", str(target)], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while lines_done(target) < 80 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not target.exists()
    done = lines_done(target)
    assert 80 <= done < 400
    for changed, message in (
        (["--seed", "2"], "was written with seed 1, not 2"),
        (["--precision", "bf16"], "was written with precision"),
    ):
        assert message in refusal(*options[1:], "--output", target, "--continue", *changed)
    (tmp_path / "other").write_text("something else\n" * 400)
    other = [str(tmp_path / "other") if option == str(source) else option for option in options[1:]]
    assert "was written from a different input" in refusal(*other, "--output", target, "--continue")
    last = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options, "--output", str(target), "--continue"],
        capture_output=True, timeout=900, check=True,
    )  # fmt: skip
    assert f"continuing after line {done}\n" in last.stderr.decode()
    assert target.read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".out.mtformer.json", ".whole.mtformer.json", "in", "other", "out", "whole"
    ]  # fmt: skip


def test_each_line_of_a_conversation_is_answered_before_the_next(
    run: Path, lines: list[str], translator: Translator
) -> None:
    with conversation("translate", run) as program:
        for line in (lines[0], "", lines[1]):
            program.stdin.write(text_of([line]).encode())
            program.stdin.flush()
            assert program.stdout.readline() == text_of([one.text for one in translator.translate([line])]).encode()
        out, _ = program.communicate(lines[2].encode(), timeout=PATIENCE_SECONDS)
        assert out == text_of([one.text for one in translator.translate(lines[2:3])]).encode()
        assert program.returncode == 0


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "no reader", "an error"])
def test_a_program_that_waits_for_input_can_be_ended(how: str, run: Path, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("Der\n")
    options = ["--prefixes", tmp_path / "prefixes"] if how == "an error" else []
    with conversation("translate", run, *options) as program:
        program.stdin.write(text_of(lines[:1]).encode())
        program.stdin.flush()
        program.stdout.readline()
        if how == "Ctrl-C":
            program.send_signal(signal.SIGINT)
        elif how == "SIGTERM":
            program.send_signal(signal.SIGTERM)
        else:
            program.stdout.close()
            program.stdin.write(text_of(lines[:1]).encode())
            program.stdin.flush()
        code = program.wait(PATIENCE_SECONDS)  # stdin is still open
        words = program.stderr.read().decode()
    assert code == {"Ctrl-C": 130, "SIGTERM": -signal.SIGTERM, "no reader": 141, "an error": 2}[how]
    expected = {
        "Ctrl-C": "interrupted\n",
        "SIGTERM": "",
        "no reader": "",
        "an error": f"error: files of unequal length: the input has more, {tmp_path}/prefixes has 1 lines; give "
        "parallel files, which have the same number of lines\n",
    }
    assert words == expected[how]


@pytest.mark.parametrize("options", [[], ["--json"], ["--html"], ["--prefixes"], ["--require"], ["--n-best", "2"]])
def test_named_pipes_are_a_conversation_too(options: list[str], run: Path, lines: list[str], tmp_path: Path) -> None:
    """A line is answered when it has arrived in each of the pipes that are read in parallel."""
    num_answers = 2 if "--n-best" in options else 1
    source, beside, target = (tmp_path / name for name in ("source", "beside", "target"))
    for path in (source, beside, target):
        os.mkfifo(path)
    is_parallel = options in (["--prefixes"], ["--require"])
    arguments = ["translate", run, "--input", source, "--output", target, *options, *([beside] * is_parallel)]
    with ThreadPoolExecutor(1) as background:
        called = background.submit(invoke, *arguments)
        with ExitStack() as stack:
            inputs = [stack.enter_context(source.open("w"))]
            if is_parallel:
                inputs.append(stack.enter_context(beside.open("w")))
            answers = stack.enter_context(target.open())
            for line in lines[:3]:
                for file, text in zip(inputs, (line, "Der"), strict=False):
                    file.write(f"{text}\n")
                    file.flush()
                assert all(answers.readline().endswith("\n") for _ in range(num_answers))
        result = called.result(timeout=PATIENCE_SECONDS)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("form", ["lines", "page", "page after blank lines"])
@pytest.mark.parametrize("num_at_once", [1, 3, 2000])
def test_html_does_not_depend_on_blocks(
    form: str, num_at_once: int, run: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ["<!DOCTYPE html>", "<html><p>{}", "</p>", "<p>{}</p>", "</html>"]
    given = {"lines": ["", "", "", "<p>{}</p>", "<b>{}</b>"], "page": page, "page after blank lines": ["", "", *page]}
    text = text_of(given[form]).format(*lines[:2])
    expected = [json.loads(line)["text"] for line in translate(run, "--html", "--json", stdin=text).stdout.splitlines()]
    assert len(expected) == (5 if form == "lines" else 1)
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", num_at_once)
    parts = translate(run, "--html", "--json", stdin=text).stdout
    assert [json.loads(line)["text"] for line in parts.splitlines()] == expected


# ---- attention of every layer and head ------------------------------------------------------------------------------


def test_attention_is_written_to_a_file(run: Path, tmp_path: Path) -> None:
    text, target = "The man sleeps in the small house.\n\nA dog.\n", "Der Mann schläft im Haus."
    (tmp_path / "targets").write_text(f"{target}\n\n\n")
    plain = translate(run, stdin=text)
    own, given, page = (tmp_path / name for name in ("own.json", "given.json", "maps.html"))
    assert translate(run, "--attention", own, stdin=text).stdout == plain.stdout
    translate(run, "--attention", given, "--targets", tmp_path / "targets", stdin=text)
    translator = Translator.load(run, device="cpu")
    for path, expected in ((own, None), (given, target)):
        first, second = json.loads(path.read_text(encoding="utf-8"))
        assert (first["line"], second["line"]) == (1, 3), "blank lines have none"
        maps = attention_maps(translator, text.splitlines()[0], expected)
        assert [first[name] for name in ("source", "translation", "src_pieces", "tgt_pieces", "decoder_keys")] == [
            maps.source, maps.translation, maps.src_pieces, maps.tgt_pieces, maps.decoder_keys
        ]  # fmt: skip
        assert [tuple(pair) for pair in first["alignment"]] == maps.alignment
        for name, weights in (
            ("encoder", maps.encoder_LHSS),
            ("decoder", maps.decoder_LHTT),
            ("cross", maps.cross_LHTS),
        ):
            torch.testing.assert_close(torch.tensor(first[name]), weights, rtol=0, atol=1e-4)
    translate(run, "--attention", page, stdin=text)
    assert "line 3: A dog." in page.read_text(encoding="utf-8")


def test_attention_of_given_translations(run: Path, tmp_path: Path) -> None:
    targets, page = tmp_path / "targets", tmp_path / "maps.html"
    targets.write_text("Der Mann schläft.\n")
    translate(run, "--targets", targets, "--attention", page, stdin="The man sleeps.\n")
    assert "Der Mann schläft." in page.read_text(encoding="utf-8")


def test_output_to_dev_stdout_is_written_to_the_file_that_the_shell_opened(run: Path, tmp_path: Path) -> None:
    with open(tmp_path / "out", "ab") as out:
        out.write(b"first\n")
        out.flush()
        words = [sys.executable, "-c", PROGRAM, "translate", str(run), "--output", "/dev/stdout"]
        subprocess.run(words, input=b"A dog.\n", stdout=out, check=True)
        assert os.path.samestat(os.fstat(out.fileno()), (tmp_path / "out").stat())
    first, translation = (tmp_path / "out").read_text().splitlines()
    assert (first, bool(translation)) == ("first", True)
    assert Path("/dev/stdout").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
