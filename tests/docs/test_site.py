"""The site of the documentation: its navigation names pages that exist, and all pages outside docs/log."""

import re

from pages import ROOT

PAGE = re.compile(r'= "([^"]+\.md)"')


def test_the_navigation_has_all_pages() -> None:
    text = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    pages = [re.sub(r"\bindex\.md$", "README.md", page) for page in PAGE.findall(text)]
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")} <= set(pages)
