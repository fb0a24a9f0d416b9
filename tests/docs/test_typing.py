"""`mypy --strict` accepts correct programs that use the Python interface, and reports mistakes in others."""

import os
import subprocess
import sys

import pytest
from pages import ROOT, blocks

PROGRAM = """\
import mtformer

translator = mtformer.Translator.load("runs/en_de", device="cpu")
translations: list[mtformer.Translation] = translator.translate(["A dog runs."], n_best=2)
for translation in translations:
    text: str = translation.text
    others: list[str] = [other.text for other in translation.alternatives]
    alignment = translation.attention.alignment if translation.attention is not None else []
    print(text, translation.score, translation.flags, others, alignment)
scored: list[mtformer.Scored | None] = translator.score(["A dog runs."], ["Ein Hund läuft."])
print(sum(one.log_probability for one in scored if one is not None))
"""
MISTAKE = """
number: int = translator.translate(["A dog runs."])[0].text
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """The errors that mypy reports in each program, run in a folder outside the repository."""
    folder = tmp_path_factory.mktemp("user")
    examples = [block.text for block in blocks(ROOT / "docs" / "python.md") if block.language == "python"]
    programs = {"user.py": PROGRAM, "mistake.py": PROGRAM + MISTAKE, "examples.py": "\n".join(examples)}
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert request.config.cache is not None
    cache = request.config.cache.mkdir("mypy")
    # The packages in PYTHONPATH count as installed: their types are used only if they have a py.typed.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *programs],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == 1, done.stdout + done.stderr
    assert all(line.split(":")[0] in programs for line in lines), done.stdout
    return {name: [line for line in lines if line.startswith(f"{name}:")] for name in programs}


@pytest.mark.process
@pytest.mark.parametrize("name", ["user.py", "examples.py"])
def test_a_program_has_no_type_errors(checked: dict[str, list[str]], name: str) -> None:
    assert checked[name] == []


@pytest.mark.process
def test_a_mistake_is_a_type_error(checked: dict[str, list[str]]) -> None:
    assert len(checked["mistake.py"]) == 1
    assert "Incompatible types in assignment" in checked["mistake.py"][0]
