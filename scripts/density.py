"""Measure how much a reader has to take in at once: the number of syntax nodes per statement inside functions.

    python scripts/density.py [FOLDER OR FILE ...] [--worst N]

A statement is a simple statement or the header of a block, such as the condition of an `if`; docstrings do not count.
The layout of the code does not change this figure: a long expression on five lines is still one long expression. The
script also lists functions of 25 lines or more in which no blank line separates the stages.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BLOCKS = {"body", "orelse", "finalbody", "handlers", "cases"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONG_FUNCTION = 25  # lines of a body that needs blank lines between its stages


@dataclass
class Figures:
    """Sizes of statements and long functions, each with its place (path and line)."""

    num_lines: int = 0
    statements: list[tuple[int, str]] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    unbroken_functions: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Add the statements and functions of a file."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.num_lines += len(text.splitlines())
        functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
        statements = {statement for function in functions for statement in statements_in(function)}
        for statement in statements:
            self.statements.append((num_nodes(statement), f"{path}:{statement.lineno}"))
        for function in functions:
            lines = text.splitlines()[start_of(function) - 1 : function.end_lineno]
            if len(lines) >= LONG_FUNCTION:
                place = f"{path}:{function.lineno} {function.name}"
                self.long_functions.append(place)
                if all(line.strip() for line in lines):
                    self.unbroken_functions.append(place)


def statements_in(block: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements in a block and its inner blocks, except for docstrings."""
    for child in ast.iter_child_nodes(block):
        if isinstance(child, ast.stmt) and not is_docstring(child):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements_in(child)


def num_nodes(node: ast.AST) -> int:
    """Return the number of nodes of a statement, without those of the statements in its blocks."""
    count = 1
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            count += num_nodes(value)
        elif isinstance(value, list) and name not in BLOCKS:
            count += sum(num_nodes(child) for child in value if isinstance(child, ast.AST))
    return count


def is_docstring(statement: ast.stmt) -> bool:
    """Return True for an expression that is only a constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def start_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line of the first statement after the docstring."""
    return next((statement.lineno for statement in function.body if not is_docstring(statement)), function.lineno)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("mtformer")])
    parser.add_argument("--worst", type=int, default=0, help="also list the N largest statements")
    arguments = parser.parse_args()
    figures = Figures()
    for path in arguments.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            figures.add(file)
    figures.statements.sort(reverse=True)
    count = len(figures.statements)
    median, ninety, ninety_five = (figures.statements[count * share // 100][0] for share in (50, 10, 5))
    print(f"{figures.num_lines} lines, {count} statements in functions")
    print(f"nodes per statement: median {median}, 90 of 100 at most {ninety}, 95 of 100 at most {ninety_five}")
    counts = f"{len(figures.long_functions)}, without a blank line: {len(figures.unbroken_functions)}"
    print(f"functions of {LONG_FUNCTION} lines or more: {counts}")
    for size, place in figures.statements[: arguments.worst]:
        print(f"{size:5} {place}")
    print(*figures.unbroken_functions[: arguments.worst], sep="\n")


if __name__ == "__main__":
    main()
