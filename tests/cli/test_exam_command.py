"""`mtformer exam`: the card, its JSON file, limits and exit codes."""

import json
import re
import shutil
from pathlib import Path

import pytest
from program import invoke

from mtformer.config.loading import dump_config, load_config
from mtformer.evaluation.exam import COLUMNS, ITEMS, ROWS
from mtformer.run_dir import RunDir, write_config

SMALL = ["--lines", 3, "--beam-size", 1]


def test_the_card_and_its_json_file(trained: tuple[Path, object], tmp_path: Path) -> None:
    result = invoke("exam", trained[0], *SMALL, "--json", tmp_path / "card.json")
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    table, legend, failures = result.stdout.split("\n\n")
    head, *lines = table.splitlines()
    assert re.split("  +", head) == ["row", "lines", "chrF", "change", "loops %", "long %", "unaligned %", "kept %"]
    assert [line.split()[0] for line in lines] == [*ROWS]
    card = json.loads((tmp_path / "card.json").read_text())
    (exam,) = card["exams"]
    assert (card["format"], card["test_set"], exam["run"], exam["broken"]) == (1, "small", str(trained[0]), [])
    assert [*exam["rows"]] == [*ROWS]
    assert [*exam["rows"]["plain"]] == [*COLUMNS]
    for line in lines:
        name, *cells = re.split("  +", line)
        row = exam["rows"][name]
        values = [row[column] for column in ("lines", "chrf", "chrf_change", "loops", "long", "unaligned")]
        assert [cell == "-" for cell in cells[:6]] == [value is None for value in values]
        assert [float(cell) for cell in cells[:6] if cell != "-"] == pytest.approx(
            [v for v in values if v is not None], abs=0.06
        )
        kept = [f"{column} {row[column]:.1f}" for column in (*ITEMS, "equal") if row[column] is not None]
        assert cells[6] in (kept or ["-"])
        assert name not in ITEMS or cells[6].startswith(name)
    for header in ("chrF", "change", "loops", "long", "unaligned", "kept"):
        assert header in legend
    assert exam["failed"]
    words = " ".join(failures.split())
    assert all(failure in words for failure in exam["failed"])
    assert "set data.noise.copies" in words
    assert exam["rows"]["batches"]["equal"] == 100
    assert exam["rows"]["plain"]["lines"] == 3


def test_broken_limits_are_named_and_blank_cells_reported(trained: tuple[Path, object], tmp_path: Path) -> None:
    limits, card = tmp_path / "limits.yaml", tmp_path / "card.json"
    limits.write_text("batches: {equal: 100}\nplain: {chrf: 99}\ncaps: {equal: 100}\n")
    result = invoke("exam", trained[0], *SMALL, "--limits", limits, "--json", card)
    assert result.exit_code == 1
    (broken,) = json.loads(card.read_text())["exams"][0]["broken"]
    assert (broken["row"], broken["column"], broken["limit"]) == ("plain", "chrf", 99)
    assert f"{trained[0]}: plain.chrf is {broken['value']:g}, but its limit is 99" in result.stderr
    assert f"{trained[0]}: the limit caps.equal is not checked, because the cell is blank" in result.stderr
    assert "batches.equal" not in result.stderr
    limits.write_text("batches: {equal: 100}\n")
    assert invoke("exam", trained[0], *SMALL, "--limits", limits).exit_code == 0


def test_two_runs_in_one_table(trained: tuple[Path, object], tmp_path: Path) -> None:
    other = tmp_path / "bundle"
    assert invoke("export", trained[0], "--output", other).exit_code == 0
    result = invoke("exam", trained[0], other, "--lines", 9, "--sample", "--beam-size", 1)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    head, *lines = result.stdout.partition("\n\n")[0].splitlines()
    assert head.split()[:4] == ["row", "run", "lines", "chrF"]
    assert "unaligned" not in head
    rows = [line.split() for line in lines]
    runs = (trained[0].name, other.name)
    assert [row[:2] for row in rows[::2]] == [[name, runs[0]] for name in ROWS]
    assert {row[0] for row in rows[1::2]} == {runs[1]}
    assert [row[2:] for row in rows[::2]] == [row[1:] for row in rows[1::2]], "the bundle has the same weights"
    assert (rows[-2][2], *rows[-1][-2:]) == ("9", "equal", "100.0"), "samples do not depend on batches"
    assert re.findall(r"failed in (\w+) ", result.stdout) == list(runs)
    result = invoke("exam", trained[0], trained[0], "--lines", 2, "--beam-size", 1, "--json", tmp_path / "card.json")
    assert (result.exit_code, len(json.loads((tmp_path / "card.json").read_text())["exams"])) == (0, 1)


def test_the_lines_come_from_files_the_test_set_or_the_dev_set(run: Path, corpus: Path, tmp_path: Path) -> None:
    bundle, cards = tmp_path / "bundle", []
    assert invoke("export", run, "--output", bundle).exit_code == 0
    result = invoke("exam", bundle, *SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (f"error: {bundle}: its config has no test set; give --src and --ref\n")
    without_test = Path(shutil.copytree(run, tmp_path / "without_test"))
    config = load_config(run / "config.yaml").config
    text = dump_config(config.model_copy(update={"data": config.data.model_copy(update={"test": {}})}))
    write_config(RunDir(without_test), text)
    files = ["--src", corpus / "dev.en", "--ref", corpus / "dev.de"]
    for path, options in ((bundle, files), (without_test, []), (run, [])):
        result = invoke("exam", path, *SMALL, *options, "--json", tmp_path / "card.json")
        assert result.exit_code == 0, result.stderr
        cards.append(json.loads((tmp_path / "card.json").read_text()))
    assert [card["test_set"] for card in cards] == ["dev", "dev", "small"]
    assert cards[0]["exams"][0]["rows"] == cards[1]["exams"][0]["rows"] != cards[2]["exams"][0]["rows"]
    empty = tmp_path / "empty"
    empty.touch()
    result = invoke("exam", bundle, "--src", empty, "--ref", empty)
    message = f"error: {empty} and {empty}: the corpus is empty: no lines were read; check its files\n"
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--src", "CORPUS/test.en"], "--src and --ref require each other; give both"),
        (["--limits", "CORPUS/none.yaml"], "CORPUS/none.yaml: no such limits file"),
        (["--json", "CORPUS"], "CORPUS: is a folder; name a file"),
        (["--to", "fr"], "this model does not translate to 'fr'; it was trained on de"),
    ],
)
def test_wrong_arguments(options: list[str], message: str, trained: tuple[Path, object], corpus: Path) -> None:
    result = invoke("exam", trained[0], *(word.replace("CORPUS", str(corpus)) for word in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message.replace("CORPUS", str(corpus)) in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_card_is_written_before_the_table(
    trained: tuple[Path, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of a pipe may end before the last line of the table."""

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("mtformer.cli.exam._table", closed)
    assert invoke("exam", trained[0], "--lines", 1, "--json", tmp_path / "card.json").exit_code == 141
    assert json.loads((tmp_path / "card.json").read_text())["exams"]
