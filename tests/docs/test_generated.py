"""docs/config.md and docs/commands.md equal the output of scripts/docs.py, on a terminal of any width."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.config.fields import section_keys


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The module scripts/docs.py."""
    spec = importlib.util.spec_from_file_location("generated_docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("columns", ["40", "300"])
@pytest.mark.parametrize("name", ["config.md", "commands.md"])
def test_the_page_is_current(script: ModuleType, name: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    path = ROOT / "docs" / name
    assert path.read_text(encoding="utf-8") == script.PAGES[path](), (
        f"{name} is out of date; run: python scripts/docs.py"
    )


def test_check_finds_a_stale_page_and_writing_repairs_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {tmp_path / "docs" / path.name: page for path, page in script.PAGES.items()}
    monkeypatch.setattr(script, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(script, "PAGES", pages)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("sys.argv", ["docs.py"])
    script.main()
    monkeypatch.setattr("sys.argv", ["docs.py", "--check"])
    script.main()
    (tmp_path / "docs" / "config.md").write_text("old\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"docs/config\.md is out of date"):
        script.main()


def test_the_pages_have_all_keys_and_options() -> None:
    config, commands = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("config.md", "commands.md"))
    assert [key for key in section_keys(leaves_only=True) if f"| `{key[-1]}` |" not in config] == []
    for name in COMMANDS:
        top = load_command(name)
        for command in getattr(top, "commands", {"": top}).values():
            options = [one.opts[-1] for one in command.params if one.param_type_name == "option"]
            assert [option for option in options if f"`{option}`" not in commands] == []
