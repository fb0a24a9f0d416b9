"""Train two models on the demo corpus, and take the screenshots for the README: a terminal and the report page.

    python scripts/pictures.py [FOLDER]

FOLDER (default: a temporary one) keeps the corpus, the runs and the output; a second call uses them. Requires
Chromium and the `test` extra.
"""

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 80, 24
RUNS = ("sinusoidal", "rotary")
"""Names of the runs, and values of model.positions."""
SETTINGS = ["training.log_every=25", "training.validate_every=50", "training.sample_sentences=1"]
MAX_BYTES = 150_000
MOMENT = re.compile(rb"train: +(5[5-9]|6\d|7\d)%")
"""Progress at which the screenshot of the terminal is taken."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; display: inline-block; background: #16181d; padding: 14px 18px; }}
pre {{ margin: 0; color: #dfe3ea; font: 14px/1.35 "DejaVu Sans Mono", monospace; }}
</style><pre>{code}</pre>"""


def mtformer(*arguments: str) -> list[str]:
    """Return a command line that runs mtformer in this environment."""
    return [sys.executable, "-m", "mtformer", *arguments]


def train(folder: Path, name: str) -> bytes:
    """Train a run on a terminal of 80 columns; return what the terminal received up to the screenshot."""
    saved = folder / f"{name}.terminal"
    if saved.is_file():
        return saved.read_bytes()
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)  # the earlier run did not finish
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = mtformer("train", "demo.yaml", "--run-dir", f"runs/{name}", f"model.positions={name}", *SETTINGS)
    process = subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    received, picture = b"", b""
    while chunk := read(ours):
        received += chunk
        if not picture and MOMENT.search(chunk):
            picture = received
    if process.wait() or not picture:
        sys.exit(f"the run {name} failed, or its progress bar did not appear:\n{received.decode()}")
    saved.write_bytes(picture)
    return picture


def read(terminal: int) -> bytes:
    """Return the next bytes of a terminal; empty when its program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux, reading a closed terminal is an error
        return b""


def screen(received: bytes) -> str:
    """Return the last lines that a terminal shows; a carriage return overwrites the line before it."""
    rows = list[str]()
    for line in received.decode().replace("\r\n", "\n").split("\n"):
        shown = [part for part in re.sub(r"\x1b\[[0-9;]*[A-LN-Z]", "", line).split("\r") if part.strip()]
        text = shown[-1].rstrip() if shown else ""
        rows += [text[start : start + COLUMNS] for start in range(0, max(1, len(text)), COLUMNS)]
    return "\n".join(rows[-ROWS:])


def main() -> None:
    """Write docs/images/terminal.png and docs/images/report.png."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="mtformer-pictures-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    os.environ |= {"PYTHONPATH": str(ROOT), "MTFORMER_CACHE": str(folder / "cache"), "TERM": "xterm-256color"}
    subprocess.run(mtformer("data", "demo", "demo"), cwd=folder, check=True)
    shutil.copyfile(ROOT / "configs" / "demo.yaml", folder / "demo.yaml")
    received = [train(folder, name) for name in RUNS]
    runs = [f"runs/{name}" for name in RUNS]
    subprocess.run(mtformer("report", *runs), cwd=folder, check=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(screen(received[0])))
    (folder / "terminal.html").write_text(console.export_html(code_format=TERMINAL, inline_styles=True))
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, width, height in (("terminal", 400, 300), ("report", 1280, 860)):
            page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=1.5)
            page.goto((folder / f"{name}.html").as_uri())
            picture = page.locator("body").screenshot() if name == "terminal" else page.screenshot()
            with Image.open(io.BytesIO(picture)) as image:  # 64 colors are enough for text, at half the size
                image.convert("RGB").quantize(64).save(IMAGES / f"{name}.png", optimize=True)
        browser.close()
    for path in IMAGES.glob("*.png"):
        if path.stat().st_size > MAX_BYTES:
            sys.exit(f"{path}: {path.stat().st_size:,} bytes are more than {MAX_BYTES:,}")


if __name__ == "__main__":
    main()
