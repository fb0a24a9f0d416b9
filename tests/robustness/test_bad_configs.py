"""Attacks with malformed configs, overrides and sweep files: each is promptly accepted, or rejected with a message."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed
from calls import problem, report
from program import invoke

from mtformer.config.fields import section_keys
from mtformer.config.yaml_text import dotted

SEED = 1
VALUES = [
    *("0", "1", "-1", "0.5", "1e400", ".nan", "-.inf", "1e-400", str(2**31), str(2**63), "9" * 30, "1" * 5000),
    *('""', '" "', '"\\0"', '"\\ud800"', '"\\u202e\\e[31m"', "x" * 5000, "é" * 300, "<x>", "/", ".", "~nosuchuser/x"),
    *("~", "true", "[]", "{}", "[1]", "{a: 1}", "[[]]", "*a", "&a 1", "!!binary x", "? x", "- -", "[" * 900),
]  # fmt: skip
KEYS = [
    *map(dotted, section_keys(leaves_only=True)),
    *("data", "model", "data.train.0", "data.train.1", "data.train.0.src", "data.train.0.src_lang", "data.train.-1"),
    *("data.corpora.x", "data.corpora.x.sources", "data.test.small.tgt", "data.test.a b", "x", "", ".", "a." * 999),
    *("data.train." + "9" * 5000, "training.x", "data.train.0.x.y", "extends"),
]  # fmt: skip
BOMB = "a: &a [1, 1, 1, 1]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)
ODD_LINES = ["a: *b", "&a [*a]", "\t- x", "data: null", "? [a]", "'", '"', "]" * 9, "[" * 9, "---", "...",
             "%YAML 9", "\0",
             "\x85", "\u2028", "<<: {a: 1}", "!!python/object:os.system x", "extends: 1", "extends: .",
             "extends: /dev/zero",
             "extends: small.yaml", BOMB]  # fmt: skip


def test_unusual_values_of_keys(corpus: Path, attacks: Attacks, passed: Passed) -> None:
    chance, count = random.Random(SEED), attacks(100)
    words = (f"{chance.choice(KEYS)}={chance.choice(VALUES)}" for _ in range(count))
    problems = [problem("config", "show", corpus / "small.yaml", word) for word in words]
    print(report(problems))
    passed("unusual values of keys", problems.count(""), count)


@pytest.mark.parametrize("kind", ["config", "sweep"])
def test_damaged_lines(kind: str, corpus: Path, tmp_path: Path, attacks: Attacks, passed: Passed) -> None:
    chance, count = random.Random(SEED), attacks(40)
    path = tmp_path / "changed.yaml"
    text = (corpus / "small.yaml").read_text()
    if kind == "sweep":
        text = f"config: {corpus}/small.yaml\nset: {{training.max_steps: 2}}\ngrid: {{training.seed: [1, 2]}}\n"
        text += "list: [{name: a, model.dropout: 0.1}, {name: b, model.dropout: 0.2}]\n"
    command = ["config", "show", path] if kind == "config" else ["sweep", path, "--dry-run", "training.seed=x"]
    problems = []
    for _ in range(count):
        path.write_bytes(_change(text, chance).encode("utf-8", "surrogatepass"))
        problems.append(problem(*command))
    print(report(problems))
    passed(f"damaged lines of a {kind}", problems.count(""), count)


def _change(text: str, chance: random.Random) -> str:
    """Return the text with damaged lines or characters."""
    lines = text.splitlines()
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        indent = " " * (len(key) - len(key.lstrip()))
        kinds: list[Callable[[], str]] = [
            lambda key=key, colon=colon: f"{key}{colon} {chance.choice(VALUES)}",
            lambda indent=indent: indent + chance.choice(ODD_LINES),
            lambda place=place: " " * chance.randrange(9) + lines[place],
            lambda place=place: lines[place][: chance.randrange(len(lines[place]) + 1)],
            lambda place=place: f"{lines[place]}\n{lines[place]}",
            lambda place=place: lines[place] + chr(chance.choice([0, 7, 0x85, 0xD800, 0xFEFF, 0x1F600])),
        ]
        lines[place] = chance.choice(kinds)()
    return "\n".join(lines)[: chance.choice([None, None, chance.randrange(len(text))])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "more than 100,000 values, including aliases"),
        ("data: " + "[" * 900 + "]" * 900, "nested more than 30 levels deep"),
        ("data: " + "[" * 31 + "]" * 31, "nested more than 30 levels deep"),
        ("data: " + "{a: " * 50_000, "nested more than 30 levels deep"),
        ("".join(" " * depth + "a:\n" for depth in range(900)), "nested more than 30 levels deep"),
        ("#" * 1_000_001, "cannot be read: larger than 1,000,000 bytes"),
        ('data: {src_lang: en, tgt_lang: de, cache_dir: "e\\0"}', r"data.cache_dir: 'e\x00': not UTF-8 text"),
        ('data: {src_lang: en, tgt_lang: de, cache_dir: "\\ud800"}', r"data.cache_dir: '\ud800': not UTF-8 text"),
        ('data: {src_lang: "\\ud800", tgt_lang: de}', r"data.src_lang: must be an ISO 639 code, such as de"),
        ("extends: ~nosuchuser/x", "~nosuchuser/x: the home folder is unknown"),
    ],
)
def test_oversized_configs_and_invalid_text_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = invoke("config", "show", path)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("override", ["data.train=" + "[" * 900 + "]" * 900, "a." * 100_000 + "a=1"])
def test_deeply_nested_overrides_are_rejected(override: str, corpus: Path) -> None:
    assert problem("config", "show", corpus / "small.yaml", override) == ""
    assert invoke("config", "show", corpus / "small.yaml", override).exit_code == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tokenizer.vocab_size=2147483648", "must be at least 16 and at most 500000"),
        ("model.num_encoder_layers=2147483648", "at most 1000"),
        ("model.d_model=9223372036854775808", "must be at most 9,007,199,254,740,992"),
        ("data.train.99999999999999999999.src=x", "is neither the index of an item"),
        ("data.filters.max_tokens=300", "lower the former or raise the latter"),
    ],
)
def test_numbers_that_are_too_large_are_rejected(override: str, message: str, corpus: Path) -> None:
    result = invoke("config", "show", corpus / "small.yaml", override)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
