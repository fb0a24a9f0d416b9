"""Help screens at 80 columns, and their examples."""

import re
import shlex
from typing import Any

import pytest
from program import invoke

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.cli.help import PANELS


def screens() -> dict[str, Any]:
    """Return all commands and sub-commands by the words that call them."""
    found = {name: load_command(name) for name in COMMANDS}
    for name in COMMANDS:
        found |= {f"{name} {sub}": command for sub, command in getattr(found[name], "commands", {}).items()}
    return found


SCREENS = screens()


@pytest.mark.parametrize("words", ["", *SCREENS])
def test_each_screen_fits_80_columns(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*words.split(), "--help").stdout
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in shown
    assert not re.search(r"\(default: [^)]*\)\.? \(default: ", shown)
    assert not re.search(r"<(?! )", shown)  # no type in angle brackets
    assert lines[0].startswith(f"Usage: {f'mtformer {words}'.strip()} [OPTIONS]")
    assert lines[lines.index("Examples:") + 1].startswith("  mtformer ")


@pytest.mark.parametrize("words", SCREENS)
def test_each_option_is_shown_in_full(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*words.split(), "--help").stdout
    for one in SCREENS[words].params:
        if one.param_type_name == "argument":
            assert re.fullmatch(r"[A-Z.=\[\] ]+", one.metavar)
            assert one.metavar in shown
            continue
        is_flag = one.metavar is None
        names = one.secondary_opts if one.secondary_opts and one.default else one.opts
        for name in names:
            assert re.search(rf"│ (-.*, )?{name}(, -.*)?{'' if is_flag else f' {re.escape(one.metavar)}'} ", shown), (
                name
            )
        assert is_flag or re.fullmatch(r"[A-Z]+|\[auto\]", one.metavar)
        choices = {str(choice) for choice in getattr(one.type_descriptor, "choices", None) or ()}
        for choice in choices:
            assert getattr(choice, "value", choice).split(".")[-1].lower() in shown


@pytest.mark.parametrize("words", SCREENS)
def test_examples_parse(words: str) -> None:
    lines = SCREENS[words].epilog.splitlines()
    assert 1 <= len(lines) <= 2
    for line in lines:
        program, *arguments = shlex.split(re.sub(r" [<>] \S+", "", line))
        assert program == "mtformer"
        assert f"{line} ".startswith(f"mtformer {words} ")
        command = load_command(arguments.pop(0))
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("example", arguments)  # parses them and runs nothing


def test_translate_help_fits_on_two_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke("translate", "--help").stdout
    assert len(shown.splitlines()) <= 100
    panels = re.findall(r"╭─ (.+?) ─", shown)
    assert panels == [
        "Arguments", "Input and output", "Search", "Sampling", "Constraints", "Device and weights"
    ]  # fmt: skip


def test_hidden_negative_options_work() -> None:
    context = load_command("translate").make_context("translate", ["run", "--no-sampling"])
    assert context.params["sampling"] is False


@pytest.mark.parametrize("words", SCREENS)
def test_options_name_panels_of_the_screen(words: str) -> None:
    panels = {getattr(parameter, "rich_help_panel", None) for parameter in SCREENS[words].params}
    assert panels - {None} <= {*PANELS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_starts_with_the_summary(name: str) -> None:
    assert invoke(name, "--help").stdout.splitlines()[2] == COMMANDS[name].summary


def test_required_options_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = invoke("adapt", "--help").stdout
    marked = [line.split()[1] for line in shown.splitlines() if "(required)" in line]
    assert marked == ["--train", "--run-dir"]
