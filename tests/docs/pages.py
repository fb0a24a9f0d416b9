"""The README and the pages in docs and its folders: their blocks of code, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("bash", "curl", "echo", "git", "mtformer", "pip", "python", "torchrun")
"""First words of a command line in an indented block."""
REASONS = (
    "installs packages",
    "needs a cluster",
    "needs a GPU",
    "needs the internet",
    "starts a server",
    "takes hours",
    "takes minutes",
    "template",
)
"""Allowed reasons not to run a block, in a comment before it: `<!-- not run: needs a GPU -->`."""
MARKER = re.compile(r"<!-- not run: (.*) -->")
FENCE = re.compile(r"( *)```(\w*)$")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        language: language of the fence; for an indented block, `bash` if it has commands, else empty.
        text: text of the block without fence and indentation.
        line: line number of the first line of the block in the page.
        before: paragraph before the block.
        reason: reason why the block is not run; None: it is run.
    """

    language: str
    text: str
    line: int
    before: str
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """Command lines without comments."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [line for line in joined if shlex.split(line, comments=True)]


def page_name(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page; fail at a block with an unknown reason or a fence without an end."""
    return list(_blocks(page.read_text(encoding="utf-8").split("\n"), page_name(page)))


def _blocks(lines: list[str], page: str) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        fence, start = FENCE.match(lines[number]), number
        if fence is not None:
            end = next((n for n in range(start + 1, len(lines)) if lines[n].strip() == "```"), None)
            assert end is not None, f"{page}:{start + 1}: a block without an end"
            text, language, start = lines[start + 1 : end], fence[2], start + 1
            number = end + 1
        elif lines[number].startswith("    ") and number and not lines[number - 1].strip():
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            text = lines[start:number]
            language = "bash" if text[0].split()[0] in PROGRAMS else ""
        else:
            number += 1
            continue
        width = len(text[0]) - len(text[0].lstrip()) if text else 0
        reason, before = _before(lines[: start - 1 if fence else start])
        assert reason is None or reason in REASONS, f"{page}:{start}: the reason is not one of {REASONS}: {reason}"
        yield Block(language, "\n".join(line[width:] for line in text), start + 1, before, reason)


def _before(lines: list[str]) -> tuple[str | None, str]:
    """Return the reason in the marker at the end of these lines, if any, and the paragraph before it."""
    while lines and not lines[-1].strip():
        lines.pop()
    marker = MARKER.fullmatch(lines[-1].strip()) if lines else None
    rest = "\n".join(lines[:-1] if marker else lines).rstrip()
    return marker[1] if marker else None, rest.split("\n\n")[-1]


def without_blocks(page: Path) -> str:
    """Return the text of a page without fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Return the text of a page without fenced blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", without_blocks(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for a page's headings."""
    text = without_blocks(page)
    titles = [title.strip().lower() for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)]
    names = [re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles]
    return {f"{name}-{names[:n].count(name)}" if name in names[:n] else name for n, name in enumerate(names)}
