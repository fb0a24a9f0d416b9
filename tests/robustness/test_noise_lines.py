"""Attacks with lines of random bytes and Unicode: filters, tokenizer, `data check`, `data clean` and `translate`."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_calm
from program import invoke

from mtformer.config.data import FilterConfig
from mtformer.data.filters.filters import KEPT, Reason
from mtformer.data.store.pipeline import Pipeline
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

SEED = 1
LINES_AT_ONCE = 2000
PLANES = [(0x20, 0x7F), (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x400, 0x530), (0x590, 0x780), (0x900, 0xE80),
          (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xE100), (0xFE00, 0xFE10),
          (0xFFF0, 0x10000), (0x1F300, 0x1FAFF), (0xE0000, 0xE0100), (0x10FF00, 0x110000)]  # fmt: skip
"""Ranges of characters: letters of many scripts, controls, accents, direction marks, private use, tags."""
WORDS = [
    "the",
    "Hund",
    "12.5",
    "www.x.de",
    "a@b.de",
    "<b>",
    "&amp;",
    "\ufffd",
    "▁",
    "<2de>",
    "</s>",
    "\u200b",
    '"',
    "\\",
]


def unicode_line(chance: random.Random) -> str:
    """Return a line of characters from a few ranges, with words, repetitions and white space; some are long."""
    ranges = chance.sample(PLANES, chance.randint(1, 3))
    parts = list[str]()
    for _ in range(chance.choice([0, 1, 3, 10, 10, 10, 200])):
        kind = chance.random()
        if kind < 0.2:
            parts.append(chance.choice(WORDS))
        elif kind < 0.3:
            parts.append(chr(chance.randrange(*chance.choice(ranges))) * chance.choice([2, 9, 300]))
        else:
            parts.append("".join(chr(chance.randrange(*chance.choice(ranges))) for _ in range(chance.randint(1, 8))))
    return chance.choice([" ", "", "\t", "\u3000"]).join(parts).replace("\n", " ")


def byte_line(chance: random.Random) -> bytes:
    """Return a line of random bytes, or a line of text with a few invalid bytes."""
    if chance.random() < 0.5:
        return chance.randbytes(chance.choice([0, 1, 5, 40, 400])).replace(b"\n", b" ")
    line = bytearray(unicode_line(chance).encode("utf-8"))
    for _ in range(chance.randint(0, 3)):
        line.insert(chance.randint(0, len(line)), chance.choice(b"\x00\x80\xc3\xed\xf5\xff\r\t"))
    return bytes(line)


@pytest.fixture(scope="module")
def tokenizers(trained: tuple[Path, object]) -> TokenizerPair:
    return TokenizerPair.load(RunDir(trained[0]).tokenizer)


def test_filters_and_tokenizer(tokenizers: TokenizerPair, attacks: Attacks, passed: Passed) -> None:
    """Each pair is removed for a reason or kept with all its tokens, and each line decodes to one line."""
    pipeline = Pipeline(FilterConfig(max_different_punctuation=3), ("en", "ja"), tokenizers)
    chance, total, num_passed = random.Random(SEED), attacks(3000), 0
    for start in range(0, total, LINES_AT_ONCE):
        size = min(LINES_AT_ONCE, total - start)
        texts = [unicode_line(chance) for _ in range(size)], [unicode_line(chance) for _ in range(size)]
        done = pipeline.run(texts)
        pipeline.keys(texts)
        lengths = [list(map(len, tokenizers.src.encode(lines))) for lines in texts]
        decoded = [tokenizers.src.decode(tokenizers.src.encode(lines)) for lines in texts]
        for code, counts, *own in zip(done.codes, done.counts, *lengths, *decoded, strict=True):
            is_kept = code == KEPT and counts[:2].tolist() == own[:2] and min(own[:2]) > 0
            num_passed += (is_kept or 0 < code <= len(Reason)) and "\n" not in own[2] + own[3]
    passed("noise lines through filters and tokenizer", num_passed, total)


@pytest.mark.parametrize("make", [unicode_line, byte_line])
def test_data_check_and_clean(
    make: Callable[[random.Random], str | bytes], attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    """Each line is either kept or removed, and kept lines are valid."""
    chance, total = random.Random(SEED), attacks(1500)
    names = [tmp_path / "noise.en", tmp_path / "noise.de"]
    for path in names:
        with path.open("wb") as file:
            for _ in range(total):
                line = make(chance)
                file.write((line if isinstance(line, bytes) else line.encode("utf-8")) + b"\n")
    languages = ("--src-lang", "en", "--tgt-lang", "de")
    checked = invoke("data", "check", *names, *languages, "data.num_workers=1", "--json", tmp_path / "check.json")
    assert checked.exit_code in (0, 1), checked.stderr
    assert is_calm(checked.stderr)
    assert json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["sets"][0]["pairs"] == total
    cleaned = invoke("data", "clean", *names, tmp_path / "out", *languages, "data.num_workers=1")
    assert cleaned.exit_code == 0, cleaned.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    num_removed = (tmp_path / "out" / "removed.tsv").read_bytes().count(b"\n")
    for language in ("en", "de"):
        lines = (tmp_path / "out" / f"kept.{language}").read_bytes()
        assert lines.decode("utf-8").count("\n") == report["kept"]
    passed(f"noise lines ({make.__name__.partition('_')[0]}) through data check and data clean",
         report["kept"] + num_removed, total)  # fmt: skip


def test_translate(trained: tuple[Path, object], attacks: Attacks, passed: Passed) -> None:
    """The translation of each line of noise is one line."""
    chance, left, num_passed, total = random.Random(SEED), attacks(60), 0, attacks(60)
    while left > 0:
        lines = [byte_line(chance)[:200] for _ in range(min(left, 500))]
        result = invoke(
            "translate", trained[0], "--device", "cpu", "--beam-size", 1, stdin=b"".join(line + b"\n" for line in lines)
        )
        assert result.exit_code == 0, result.stderr
        assert is_calm(result.stderr)
        num_passed += result.stdout_bytes.count(b"\n")
        left -= len(lines)
    passed("noise lines through translate", num_passed, total)
