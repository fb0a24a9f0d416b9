"""No link between pages is broken, each page is linked, and pictures are small."""

import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT, anchors, page_name, prose, without_blocks

LINK = re.compile(r"(!?)\[[^\]]*\]\(([^()\s]+)\)")
HTML = re.compile(r"<(?:img|source|a)\b[^>]*?(?:src|srcset|href)=\"([^\"]+)\"")
MAX_IMAGE_BYTES = 200_000
MAX_LINE = 120
GENERATED = ("commands.md", "config.md")
"""Pages that `scripts/docs.py` writes."""


def links(page: Path) -> list[str]:
    """Return the targets of the links and pictures in a page, except external URLs."""
    text = prose(page)
    found = [target for _, target in LINK.findall(text)] + HTML.findall(text)
    return [target for target in found if re.match(r"\w+:", target) is None]


def problem(page: Path, link: str) -> str | None:
    """Return the reason why a link is broken, or None."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return "no such file"
    if not target.is_relative_to(ROOT) and ROOT in page.parents:
        return "outside of the repository"
    if anchor and anchor not in anchors(target):
        return "no such heading"
    if target.suffix in (".png", ".svg", ".jpg", ".gif") and target.stat().st_size >= MAX_IMAGE_BYTES:
        return "the picture is too large"
    return None


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_link_is_broken(page: Path) -> None:
    assert {link: found for link in links(page) if (found := problem(page, link))} == {}


def test_each_page_is_linked_and_has_one_title() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    assert [page_name(page) for page in PAGES if page not in linked and page != ROOT / "README.md"] == []
    for page in PAGES:
        assert re.findall(r"^# ", page.read_text(encoding="utf-8").partition("```")[0], flags=re.MULTILINE) == ["# "]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lines_fit_on_a_screen(page: Path) -> None:
    if page.name in GENERATED:
        return
    lines = [line for line in without_blocks(page).splitlines() if not line.startswith("|") and len(line.split()) > 1]
    assert [line for line in lines if len(line) > MAX_LINE] == []


def test_each_picture_is_shown() -> None:
    linked = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert [path.name for path in (ROOT / "docs" / "images").iterdir() if path not in linked] == []


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("page.md", None),
        ("#a-heading-with-code", None),
        ("page.md#twice-1", None),
        ("page.md#twice-2", "no such heading"),
        ("#in-a-block", "no such heading"),
        ("missing.md", "no such file"),
        ("big.png", "the picture is too large"),
    ],
)
def test_broken_links_are_reported(tmp_path: Path, link: str, found: str | None) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading, with `code`\n## Twice\n## Twice\n```bash\n# In a block\n```\n", encoding="utf-8")
    (tmp_path / "big.png").write_bytes(bytes(MAX_IMAGE_BYTES))
    assert problem(page, link) == found


def test_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = '[a](a.md) `[b](b.md)` ![c](c.png) <img src="d.png" alt="d"> [e](https://example.org)\n```\n[f](f.md)\n```\n'
    page.write_text(text, encoding="utf-8")
    assert links(page) == ["a.md", "c.png", "d.png"]
