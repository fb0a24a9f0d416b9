"""Attacks with damaged files of each kind that a command reads besides corpora and runs, and with damaged HTML."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_good_error
from calls import problem, report
from program import invoke
from test_corpora import damage
from test_damaged_files import changed_value
from writing import FEW_STEPS, SHORT, Place, Words, calibrating, distilling, importing

from mtformer.files import json_sha256
from mtformer.run_dir import RunDir

SEED = 1
SLOW = ("new text in TMX", "new dev set", "old dev set", "confidence.json", "monolingual text for a student")
"""Kinds whose attacks take seconds each; they are not in the sample of the default test suite."""
PAGE = """<!DOCTYPE html><html><head><title>A dog</title><style>p {}</style></head><body>
<p class="x">A <b>dog</b> runs in <a href="x?a=1&amp;b=2">a <i>small</i> park</a>.<br>The man&nbsp;sleeps.</p>
<ul><li>One</li><li translate="no">Two</li></ul><!-- a comment --><table><tr><td>A cat</td></tr></table>
<pre>as  it is</pre><script>if (a < b) { run("</p>") }</script><p>The woman sees <img src="x.png" alt="a dog"></p>
</body></html>
"""
TU = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de-DE"><seg>{}<ph i="1"/></seg></tuv></tu>\n'
TMX = '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n{}</body></tmx>\n'
LIMITS = "caps: {chrf_change: -100}\nurls: {urls: 0}\n"
TERMS = "dog\tHund\nsmall park\tkleiner Park\nman\tMann\n"
SWEEP = "config: {config}\nrun_dir: {out}\nset: {{training.max_steps: 4}}\ngrid: {{model.dropout: [0.1, 0.2]}}\n"


@dataclass(frozen=True)
class Reader:
    """A kind of file, and the call that reads it."""

    intact: Callable[[Place], bytes]
    """Function that returns an intact file."""
    call: Callable[[Place, Path], Words]
    """Function that returns a call that reads a file."""
    suffix: str = ""
    """Suffix of the name of the file."""


def text(count: int) -> Callable[[Place], bytes]:
    return lambda place: "".join(f"{line}\n" for line in place.lines("en", count)).encode()


def translating(*options: object) -> Callable[[Place, Path], Words]:
    """Return a call that translates three lines with these options and the damaged file."""
    return lambda place, path: [
        "translate", place.run, "--input", place.text("few.txt", place.lines("en", 3)), *options, path, *SHORT
    ]  # fmt: skip


def tmx(place: Place) -> bytes:
    pairs = zip(place.lines("en", 80), place.lines("de", 80), strict=True)
    return TMX.format("".join(TU.format(*pair) for pair in pairs)).encode()


def marian(place: Place, name: str) -> bytes:
    _, folder, _ = importing(place)
    return Path(str(folder), name).read_bytes()


def importing_with(name: str) -> Reader:
    """Return a reader of a file of a model to import."""

    def call(place: Place, path: Path) -> Words:
        _, folder, out = importing(place)
        model = path.with_name("model")
        shutil.copytree(str(folder), model)
        (model / "checksums.json").unlink()  # not written by other programs
        shutil.copyfile(path, model / name)
        return ["import", model, out]

    return Reader(lambda place: marian(place, name), call)


def with_confidence(place: Place, path: Path) -> Words:
    run = path.with_name("run")
    shutil.copytree(place.inputs / "calibrated", run)
    shutil.copyfile(path, RunDir(run).confidence)
    source = place.text("few.txt", place.lines("en", 3))
    return ["translate", run, "--input", source, "--only-above", 0.5, "--json"]


def confidence(place: Place) -> bytes:
    run = place.inputs / "calibrated"
    if not run.exists():
        words = calibrating(replace(place, out=place.inputs / "confidence" / "out"))
        (place.inputs / "confidence").mkdir()
        assert problem(*words) == ""
        shutil.copytree(str(words[1]), run)
    return RunDir(run).confidence.read_bytes()


def tokenizer_folder(path: Path) -> Path:
    folder = path.with_name("tokenizer")
    folder.mkdir()
    shutil.copyfile(path, folder / "joint.model")
    return folder


def rows(place: Place, count: int) -> list[str]:
    pairs = zip(place.lines("en", count), place.lines("de", count), strict=True)
    return ["\t".join(pair) for pair in pairs]


def pairs(place: Place) -> Path:
    return place.text("new.tsv", rows(place, 80))


def dev_pairs(place: Place) -> bytes:
    """Return a dev set without the pairs of the new text."""
    return "".join(f"{row}\n" for row in rows(place, 120)[80:]).encode()


READERS: dict[str, Reader] = {
    "glossary": Reader(lambda place: TERMS.encode(), translating("--glossary")),
    "prefixes": Reader(text(3), translating("--prefixes")),
    "required phrases": Reader(text(3), translating("--require")),
    "translations to analyze": Reader(
        text(3), lambda place, path: translating("--attention", f"{place.out}.json", "--targets")(place, path)
    ),
    "lines to translate": Reader(
        text(3), lambda place, path: ["translate", place.run, "--input", path, *SHORT]
    ),
    "an HTML page": Reader(
        lambda place: PAGE.encode(), lambda place, path: ["translate", place.run, "--html", "--input", path, *SHORT]
    ),
    "lines of HTML": Reader(
        lambda place: PAGE.split("<body>")[1].encode(),
        lambda place, path: ["translate", place.run, "--html", "--input", path, *SHORT],
    ),
    "source of a test set": Reader(
        text(20), lambda place, path: [
            "eval", place.run, "--src", path, "--ref", place.corpus / "test.de", "--output", place.out, *SHORT,
        ],
    ),
    "references": Reader(
        text(20), lambda place, path: [
            "eval", place.run, "--src", place.corpus / "test.en", "--ref", path, "--output", place.out, *SHORT,
        ],
    ),
    "source of an exam": Reader(
        text(20), lambda place, path: [
            "exam", place.run, "--lines", 2, "--src", path, "--ref", place.corpus / "test.de", *SHORT,
        ],
    ),
    "limits of an exam": Reader(
        lambda place: LIMITS.encode(),
        lambda place, path: ["exam", place.run, "--lines", 2, "--limits", path, *SHORT],
    ),
    "translations to score": Reader(
        text(20), lambda place, path: ["score", place.run, place.corpus / "test.en", path],
    ),
    "translations to compare": Reader(
        text(20), lambda place, path: [
            "compare", path, place.corpus / "test.de", "--ref", place.corpus / "test.de", "--src", path,
        ],
    ),
    "a sweep": Reader(
        lambda place: SWEEP.format(config=place.config, out=place.out).encode(),
        lambda place, path: ["sweep", path, "--dry-run"],
    ),
    "a config": Reader(
        lambda place: place.config.read_bytes(), lambda place, path: ["config", "show", path],
    ),
    "a SentencePiece model": Reader(
        lambda place: (place.run / "tokenizer" / "joint.model").read_bytes(),
        lambda place, path: ["tokenizer", "encode", path],
    ),
    "a tokenizer for data check": Reader(
        lambda place: (place.run / "tokenizer" / "joint.model").read_bytes(),
        lambda place, path: ["data", "check", place.config, "--tokenizer", tokenizer_folder(path)],
    ),
    "monolingual text for a student": Reader(
        text(20), lambda place, path: [
            *distilling(place), "--mono", path,
        ],
    ),
    "config.json of a Marian model": importing_with("config.json"),
    "generation_config.json of a Marian model": importing_with("generation_config.json"),
    "vocab.json of a Marian model": importing_with("vocab.json"),
    "source.spm of a Marian model": importing_with("source.spm"),
    "model.safetensors of a Marian model": importing_with("model.safetensors"),
    "new text in TMX": Reader(
        tmx,
        lambda place, path: ["adapt", place.run, "--train", path, "--run-dir", place.out, *FEW_STEPS],
        suffix=".tmx",
    ),
    "new dev set": Reader(
        dev_pairs, lambda place, path: [
            "adapt", place.run, "--train", pairs(place), "--dev", path, "--run-dir", place.out, *FEW_STEPS,
        ],
    ),
    "old dev set": Reader(
        dev_pairs, lambda place, path: [
            "adapt", place.run, "--train", pairs(place), "--old-dev", path, "--run-dir", place.out, *FEW_STEPS,
        ],
    ),
    "confidence.json": Reader(confidence, with_confidence),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of further inputs, which are written once."""
    return tmp_path_factory.mktemp("inputs")


@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs(
    name: str,
    corpus: Path,
    trained: tuple[Path, object],
    inputs: Path,
    attacks: Attacks,
    passed: Passed,
    tmp_path: Path,
) -> None:
    """Each call succeeds, or reports the file in one line."""
    if attacks(1) == 1 and (name in SLOW or name.endswith("Marian model")):
        pytest.skip("not in the sample: needs --attacks of at least 2")
    reader = READERS[name]
    total, problems = attacks(1), []
    for number in range(total):
        chance = random.Random(f"{SEED} {name} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        place = Place(corpus, trained[0], inputs, folder / "out")
        data = reader.intact(place)
        is_intact = number == 1  # this one must be accepted, otherwise the attack shows nothing
        for _ in range(0 if is_intact else chance.randint(1, 3)):
            data = damage(data, chance)
        path = folder / f"damaged{reader.suffix}"
        path.write_bytes(data)
        words = reader.call(place, path)
        if is_intact:
            result = invoke(*words, stdin=b"A dog.\n")
            found = "" if result.exit_code in (0, 1) else result.stderr
        else:
            found = problem(*words)
        problems.append(found and f"{number}: {found}")
    print(report(problems))
    passed(f"damaged inputs: {name}", problems.count(""), total)


def test_html_keeps_the_number_of_lines(
    corpus: Path, trained: tuple[Path, object], attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    """Damaged lines of HTML are translated, and each line has its translation."""
    chance, total, num_passed = random.Random(SEED), attacks(5), 0
    for number in range(total):
        place = Place(corpus, trained[0], tmp_path, tmp_path / f"{number}.out")
        data = damage(READERS["lines of HTML"].intact(place), chance)
        path = tmp_path / str(number)
        path.write_bytes(data)
        result = invoke("translate", trained[0], "--html", "--input", path, *SHORT)
        if result.exit_code == 2:
            num_passed += is_good_error(2, result.stderr)
        else:
            num_lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
            num_passed += result.exit_code == 0 and result.stdout_bytes.count(b"\n") == num_lines
    passed("damaged HTML keeps its lines", num_passed, total)


def test_wrong_types_in_the_confidence(
    corpus: Path, trained: tuple[Path, object], inputs: Path, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    """The checksum in the file is correct, as that of an attacker would be."""
    if attacks(1) == 1:
        pytest.skip("not in the sample: needs --attacks of at least 2")
    chance, total, problems = random.Random(SEED), attacks(4), []
    for number in range(total):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = Place(corpus, trained[0], inputs, folder / "out")
        values = json.loads(confidence(place))
        del values["checksum"]
        changed, what = changed_value(values, chance)
        if isinstance(changed, dict):
            changed["checksum"] = json_sha256(changed)
        path = folder / "damaged"
        path.write_text(json.dumps(changed), encoding="utf-8")
        found = problem(*with_confidence(place, path))
        problems.append(found and f"{what}: {found}")
    print(report(problems))
    passed("a confidence with wrong types", problems.count(""), total)
