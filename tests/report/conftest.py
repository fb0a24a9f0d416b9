"""A finished run and its report, opened in Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from small_run import Opens, finished_run

from mtformer.report.run_report import write_report
from mtformer.run_dir import RunDir


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a finished run with its report; tests must not change it."""
    run = finished_run(tmp_path_factory.mktemp("runs") / "a <b>bold<b> run")
    write_report([run.path], run.report)
    return run


@pytest.fixture
def opens(chromium: Browser) -> Iterator[Opens]:
    """Yield a function that opens a file; fail at the end if a page had an error or sent a request."""
    pages, wrong = list[Page](), list[str]()

    def open_file(file: Path, **settings: Any) -> Page:
        page = chromium.new_page(**settings)
        pages.append(page)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_load_state()
        wrong.extend(f"request: {url}" for url in asked[1:])
        return page

    yield open_file
    for page in pages:
        page.close()
    assert wrong == []
