"""The house: a module imports only from rooms below its own, and only the command line prints or exits."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mtformer"
MODULES = sorted(PACKAGE.rglob("*.py"))
# Rooms of one floor do not know each other.
FLOORS = [
    {"", "errors"},
    {"config", "device", "rundir", "templating", "weights"},
    {"text", "model"},
    {"data"},
    {"training", "decoding"},
    {"evaluation", "export"},
    {"experiment"},
    {"report", "serving"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FRONT_DOOR = "mtformer.decoding.translator"
"""What the package hands to Python users, imported when they ask for it."""
ENDS = ("print", "input", "exit", "quit", "SystemExit")
EXITS = {("sys", "exit"), ("os", "_exit"), ("sys", "stdout"), ("sys", "stderr")}


def room_of(module: str) -> str:
    """The room of `mtformer.room.module`; the package itself is the room without a name."""
    return [*module.split("."), ""][1]


def imports(tree: ast.Module) -> Iterator[str]:
    """Names of all modules that are imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "mtformer":
                # `from mtformer import x`: a module of the package, or a name of its __init__.
                is_room = {alias.name: alias.name in FLOOR_OF for alias in node.names}
                yield from (f"mtformer.{name}" if room else "mtformer" for name, room in is_room.items())
            else:
                yield node.module


def prints_or_exits(tree: ast.Module) -> list[int]:
    """Lines that write to the terminal or end the process."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ENDS:
            lines.append(node.lineno)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id in ENDS:
            lines.append(node.lineno)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            lines += [node.lineno] if (node.value.id, node.attr) in EXITS else []
    return lines


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def forbidden_imports(room: str, tree: ast.Module) -> list[str]:
    """What a module of `room` may not import."""
    own = [name for name in imports(tree) if name.split(".")[0] == "mtformer" and room_of(name) != room]
    wrong = [name for name in own if FLOOR_OF[room_of(name)] >= FLOOR_OF[room]]
    return wrong + [name for name in imports(tree) if name.split(".")[0] == "transformers"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_knows_only_what_lies_below(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")
    tree = parse(path)
    assert [name for name in forbidden_imports(room, tree) if room or name != FRONT_DOOR] == []
    if room not in ("cli", "__main__"):
        assert prints_or_exits(tree) == []
        assert not any(name.split(".")[0] == "typer" for name in imports(tree))


@pytest.mark.parametrize(
    ("room", "line", "wrong"),
    [
        ("model", "from mtformer.text.tokenizer import PAD", True),
        ("model", "from mtformer.config.schema import ModelConfig", False),
        ("model", "from mtformer.model.cache import Cache", False),
        ("model", "import mtformer.cli.app", True),
        ("training", "def f():\n    from mtformer.decoding import search", True),
        ("training", "from mtformer import cli", True),
        ("export", "from mtformer import __version__", False),
        ("export", "import transformers", True),
    ],
)
def test_the_check_itself(room: str, line: str, wrong: bool) -> None:
    assert bool(forbidden_imports(room, ast.parse(line))) == wrong


DATA_LAYERS = [{"report", "workers", "demo"}, {"corpus"}, {"filters"}, {"store"}, {"batching", "check"}]
LAYER_OF = {folder: number for number, folders in enumerate(DATA_LAYERS) for folder in folders}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("data/*/*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_of_data_imports_only_from_lower_layers(path: Path) -> None:
    own = path.parent.name
    used = {name.split(".")[2] for name in imports(parse(path)) if name.startswith("mtformer.data.")}
    assert [name for name in used - {own} if LAYER_OF[name] >= LAYER_OF[own]] == []


@pytest.mark.parametrize("line", ["print(1)", "import sys\nsys.exit(2)", "raise SystemExit", "sys.stderr.write('x')"])
def test_the_check_for_prints_itself(line: str) -> None:
    assert prints_or_exits(ast.parse(line)) != []
