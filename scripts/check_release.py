"""Check before a release that a tag, the version, the changelog and the citation agree.

python scripts/check_release.py v0.3.0     exit with code 1, and a line for each problem
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def problems(tag: str) -> Iterator[str]:
    """Yield what prevents the release of a tag."""
    found = re.search(r'__version__ = "(.*)"', text("mtformer/version.py"))
    version = found[1] if found else ""
    if tag != f"v{version}":
        yield f"mtformer/version.py: the version is {version!r}, so the tag must be v{version}, not {tag}"

    changelog = text("CHANGELOG.md")
    release = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d{{2}}-\d{{2}})$", changelog, re.MULTILINE)
    if release is None:
        yield f"CHANGELOG.md: has no heading '## [{version}] - DATE'"
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## )", changelog, re.MULTILINE | re.DOTALL)
    if unreleased is not None and unreleased[1].strip():
        yield f"CHANGELOG.md: has changes under 'Unreleased'; move them to {version}"

    citation = text("CITATION.cff")
    if not re.search(rf"^version: \"?{re.escape(version)}\"?$", citation, re.MULTILINE):
        yield f"CITATION.cff: the version is not {version}"
    if release is not None and not re.search(rf"^date-released: \"?{release[1]}\"?$", citation, re.MULTILINE):
        yield f"CITATION.cff: date-released is not {release[1]}"


def main() -> None:
    """Check the tag in the first argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/check_release.py TAG")
    lines = list(problems(sys.argv[1]))
    if lines:
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
