"""The text of the package stays easy to read: one value per assignment, one loop per comprehension."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mtformer"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_swap(targets: ast.Tuple, values: ast.Tuple) -> bool:
    """Return True if the same expressions are on both sides, as in `a, b = b, a`."""
    return sorted(map(ast.unparse, targets.elts)) == sorted(map(ast.unparse, values.elts))


def dense_expressions(tree: ast.AST) -> Iterator[str]:
    """Yield the line and the kind of each expression that a reader has to take apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            value = node.value
            is_tuple = isinstance(value, ast.Tuple) and not is_swap(node.targets[0], value)
            if is_tuple or isinstance(value, ast.GeneratorExp):
                yield f"{node.lineno}: several values in one assignment"
        if isinstance(node, COMPREHENSIONS):
            if len(node.generators) > 1:
                yield f"{node.lineno}: comprehension with several loops"
            if any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node):
                yield f"{node.lineno}: comprehension inside a comprehension"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_one_thought_per_expression(path: Path) -> None:
    assert list(dense_expressions(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("code", "is_dense"),
    [
        ("a, b = x, y", True),
        ("a, b = (f(x) for x in y)", True),
        ("a, b = b, a", False),
        ("a, b = f(x)", False),
        ("[x for y in z for x in y]", True),
        ("[[x for x in y] for y in z]", True),
        ("sum(x for x in [y for y in z])", True),
        ("[f(x) for x in y]", False),
    ],
)
def test_dense_expressions_are_detected(code: str, is_dense: bool) -> None:
    assert bool(list(dense_expressions(ast.parse(code)))) == is_dense
