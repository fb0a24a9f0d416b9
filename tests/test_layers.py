"""Modules import only from lower layers, and only the command line prints or exits."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mtformer"
MODULES = sorted(PACKAGE.rglob("*.py"))
# The packages and modules of one layer do not import each other.
LAYERS = [
    {"", "enums", "errors", "formatting", "version"},
    {"files"},
    {"cluster", "config", "device", "hub", "run_dir", "templating", "weights"},
    {"text", "model"},
    {"data"},
    {"training", "decoding"},
    {"documents", "evaluation"},
    {"export"},
    {"experiment"},
    {"report", "serving"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {part: number for number, parts in enumerate(LAYERS) for part in parts}
PUBLIC = {
    "mtformer.decoding.lines.translation",
    "mtformer.decoding.translator",
    "mtformer.errors",
    "mtformer.version",
}
"""Modules that define the public names, which the package imports."""
ENDS = ("print", "input", "exit", "quit", "SystemExit")
EXITS = {("sys", "exit"), ("os", "_exit"), ("sys", "stdout"), ("sys", "stderr")}


def part_of(module: str) -> str:
    """Return the part of `mtformer.part.module`; the package itself is the part with an empty name."""
    return [*module.split("."), ""][1]


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all imported modules, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must be absolute"
            assert node.module is not None
            if node.module == "mtformer":
                # `from mtformer import x`: a module of the package, or a name of its __init__.
                is_part = {alias.name: alias.name in LAYER_OF for alias in node.names}
                yield from (f"mtformer.{name}" if part else "mtformer" for name, part in is_part.items())
            else:
                yield node.module


def prints_or_exits(tree: ast.Module) -> list[int]:
    """Return the numbers of the lines that write to the terminal or end the process."""
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


def forbidden_imports(part: str, tree: ast.Module) -> list[str]:
    """Return the imports that are not allowed in a module of `part`."""
    own = [name for name in imports(tree) if name.split(".")[0] == "mtformer" and part_of(name) != part]
    wrong = [name for name in own if LAYER_OF[part_of(name)] >= LAYER_OF[part]]
    return wrong + [name for name in imports(tree) if name.split(".")[0] == "transformers"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_import_only_from_lower_layers(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")
    tree = parse(path)
    assert [name for name in forbidden_imports(part, tree) if part or name not in PUBLIC] == []
    if part not in ("cli", "__main__"):
        assert prints_or_exits(tree) == []
        assert not any(name.split(".")[0] == "typer" for name in imports(tree))


@pytest.mark.parametrize(
    ("part", "line", "wrong"),
    [
        ("model", "from mtformer.text.tokenizer import PAD", True),
        ("model", "from mtformer.config.schema import ModelConfig", False),
        ("model", "from mtformer.model.cache import Cache", False),
        ("model", "import mtformer.cli.app", True),
        ("training", "def f():\n    from mtformer.decoding import search", True),
        ("training", "from mtformer import cli", True),
        ("export", "from mtformer.version import __version__", False),
        ("export", "import transformers", True),
    ],
)
def test_forbidden_imports_are_detected(part: str, line: str, wrong: bool) -> None:
    assert bool(forbidden_imports(part, ast.parse(line))) == wrong


INNER_LAYERS = {
    "data": [{"data_report"}, {"corpus"}, {"filters"}, {"store"}, {"batching", "check", "demo"}],
    "decoding": [{"search", "weights"}, {"lines", "ctranslate2"}, {"loading"}, {"translator"}, {"attention_maps"}],
}
"""Folders and modules inside a package; those of one layer do not import each other."""
INNER_MODULES = [path for package in INNER_LAYERS for path in sorted(PACKAGE.glob(f"{package}/**/*.py"))]


def inner_part(module: str) -> str:
    """Return the folder or module inside a package: `corpus` for `mtformer.data.corpus.readers`."""
    return module.split(".")[2]


@pytest.mark.parametrize("path", INNER_MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_folders_of_a_package_import_only_from_lower_layers(path: Path) -> None:
    package, *parts = path.relative_to(PACKAGE).with_suffix("").parts
    layer_of = {part: number for number, layer in enumerate(INNER_LAYERS[package]) for part in layer}
    own_part = parts[0]
    used = {inner_part(name) for name in imports(parse(path)) if name.startswith(f"mtformer.{package}.")}
    assert [part for part in used - {own_part} if layer_of[part] >= layer_of[own_part]] == []


@pytest.mark.parametrize("line", ["print(1)", "import sys\nsys.exit(2)", "raise SystemExit", "sys.stderr.write('x')"])
def test_prints_and_exits_are_detected(line: str) -> None:
    assert prints_or_exits(ast.parse(line)) != []
