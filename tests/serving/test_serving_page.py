"""The translation page in a browser."""

import copy
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from contrast import check_contrast
from playwright.sync_api import Browser, Page, expect
from served import alone, serving

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.decoding.translator import Translator

HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"
Open = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """Yield a function that opens a new server's page; fail at the end after warnings or requests to other servers."""
    problems: list[str] = []
    with ExitStack() as stack:

        def start(translator: Translator, scheme: str = "light", width: int = 1200, **changes: Any) -> Page:
            place = stack.enter_context(serving(translator, **changes))
            size = {"width": width, "height": 844}
            context = chromium.new_context(color_scheme=scheme, viewport=size)
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            stack.callback(context.close)
            page = context.new_page()
            page.on("console", lambda message: on_console(message.type, message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
            page.on("request", lambda request: asked(place, request.url))
            page.goto(place)
            return page

        def on_console(kind: str, text: str) -> None:
            if kind in ("error", "warning") and "status of 4" not in text:  # the page shows these
                problems.append(text)

        def asked(place: str, address: str) -> None:
            if not address.startswith(f"{place}/"):
                problems.append(address)

        yield start
    assert problems == []


def _with(translator: Translator, translate: Callable[..., list[Translation]]) -> Translator:
    copied = copy.copy(translator)
    copied.translate = translate  # replaces the method
    return copied


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 390), ("dark", 390)])
def test_a_typed_sentence_is_translated(
    open_page: Open, translator: Translator, scheme: str, width: int, tmp_path: Path
) -> None:
    page = open_page(translator, scheme, width)
    page.locator("#text").press_sequentially("the dog sees a cat", delay=5)
    expect(page.locator(".source")).to_have_text("the dog sees a cat")
    expect(page.locator(".n-best li")).to_have_count(3)
    expected = alone(translator, "the dog sees a cat")
    assert page.locator(".translation").inner_text().split() == expected.split()
    n_best = translator.translate(["the dog sees a cat"], n_best=3)[0]
    shown = page.locator(".n-best button").all()
    for button, one in zip(shown, [n_best, *n_best.alternatives], strict=True):
        assert button.locator(".score").inner_text() == f"{one.score:.3f}"
        assert button.locator(".text").inner_text().split() == one.text.split()
    page.locator(".word").nth(1).hover()
    assert page.locator(".piece.seen").count() > 0
    page.screenshot(path=str(tmp_path / f"{scheme}-{width}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_contrast(page, scheme == "dark", 15)


def test_a_word_shades_the_source_words_it_attends_to(open_page: Open, translator: Translator) -> None:
    def looking(lines: Sequence[str], **settings: Any) -> list[Translation]:
        look = Attention(["▁a", "▁d", "og"], ["▁x", "▁y", "z"], [[1.0, 0, 0], [0, 0.8, 0.2], [0, 0.4, 0.6]], [0, 0, 0])
        other = Translation("other", -2.0, [], attention=replace(look, tgt_pieces=["▁o", "the", "r"]))
        return [Translation("x yz", -1.0, [], flags=("copy",), attention=look, alternatives=(other,))]

    page = open_page(_with(translator, looking))
    page.fill("#text", "a dog")
    words, pieces = page.locator(".word"), page.locator(".piece")
    expect(words).to_have_text(["x", "yz"])
    expect(page.locator(".source")).to_have_text("a dog")
    expect(page.locator(".flags")).to_have_text("copy")
    titles = "[...document.querySelectorAll('.piece')].map(piece => piece.title)"
    words.nth(1).hover()
    assert page.evaluate(titles) == ["", "0.60", "0.40"]
    alphas = [pieces.nth(n).evaluate("p => getComputedStyle(p).backgroundColor") for n in range(3)]
    assert len(set(alphas)) == 3
    page.mouse.move(1, 1)
    assert page.evaluate(titles) == ["", "", ""]
    page.locator(".translation").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(titles) == ["1.00", "", ""]
    page.locator(".n-best button").nth(1).click()
    expect(words).to_have_text(["other"])
    assert page.locator("[aria-pressed=true]").inner_text().split() == ["-2.000", "other"]


def test_only_a_low_confidence_is_red_and_the_page_says_what_it_means(open_page: Open, translator: Translator) -> None:
    def look() -> Attention:  # each answer has its own, which the server empties
        return Attention(["▁a"], ["▁x"], [[1.0]], [0])

    def sure(lines: Sequence[str], **settings: Any) -> list[Translation]:
        other = Translation("y", -2.0, [], attention=look(), confidence=0.1, flags=("low confidence",))
        return [Translation("x", -1.0, [], attention=look(), alternatives=(other,), confidence=0.934)]

    def unsure(lines: Sequence[str], **settings: Any) -> list[Translation]:
        return [Translation("x", -1.0, [], attention=look())]

    page = open_page(_with(translator, sure))
    page.fill("#text", "a")
    expect(page.locator(".confidence")).to_have_text(["93% sure", "10% sure"])
    color = "span => getComputedStyle(span).color"
    high, low = (page.locator(".confidence").nth(number).evaluate(color) for number in (0, 1))
    assert low == page.locator(".flags").evaluate(color)
    assert high == page.locator("#hint").evaluate(color) != low
    assert "the estimated probability that the translation is good" in " ".join(
        page.locator("#confidence-hint").inner_text().split()
    )

    page = open_page(_with(translator, unsure))
    page.fill("#text", "a")
    expect(page.locator(".translation")).to_have_text("x")
    expect(page.locator("#confidence-hint")).to_be_hidden()


def test_markup_in_hostile_text_is_shown_as_text(open_page: Open, translator: Translator) -> None:
    def echo(lines: Sequence[str], **settings: Any) -> list[Translation]:
        look = Attention([HOSTILE], [HOSTILE], [[1.0]], [0])
        return [Translation(HOSTILE, -1.0, [], flags=(HOSTILE,), attention=look) for _ in lines]

    page = open_page(_with(translator, echo), title=HOSTILE)
    page.fill("#text", HOSTILE)
    for place in (".translation", ".source", ".n-best .text", ".flags", "header p"):
        expect(page.locator(place)).to_have_text(HOSTILE)
    assert page.title() == f"Translate: {HOSTILE}"
    assert page.locator("img, b").count() == 0
    assert page.locator("script").count() == 2
    # Even if text were inserted as markup, the browser would not run scripts in it.
    policy = page.request.get(page.url).headers["content-security-policy"]
    directives = dict(directive.strip().split(" ", 1) for directive in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert re.fullmatch("'sha256-[A-Za-z0-9+/]{43}='", directives["script-src"])


def test_long_words_and_lines_fit_on_a_phone(open_page: Open, translator: Translator) -> None:
    page = open_page(translator, width=390)
    page.fill("#text", "dog" * 60 + "\n\n" + "🙂" * 30)
    expect(page.locator(".line")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_text_is_translated_after_a_pause_and_earlier_answers_are_dropped(
    open_page: Open, translator: Translator
) -> None:
    entered, release, calls = threading.Event(), threading.Event(), list[list[str]]()

    def translate(lines: Sequence[str], **settings: Any) -> list[Translation]:
        calls.append(list(lines))
        if lines[0] == "a dog":
            entered.set()
            assert release.wait(20)
        return translator.translate(lines, **settings)

    page = open_page(_with(translator, translate))
    page.evaluate(
        """() => { window.shown = []; new MutationObserver(() => {
            window.shown.push(document.querySelector(".source")?.textContent);
        }).observe(document.getElementById("result"), { childList: true, subtree: true }); }"""
    )
    page.locator("#text").press_sequentially("a dog", delay=20)
    assert entered.wait(20)
    with page.expect_request(lambda request: request.post_data_json["q"] == "a dog sees"):
        page.locator("#text").press_sequentially(" sees", delay=20)
    release.set()
    expect(page.locator(".source")).to_have_text("a dog sees")
    assert calls == [["a dog"], ["a dog sees"]]  # no request for each key press
    assert set(page.evaluate("window.shown")) - {None} == {"a dog sees"}


def test_languages_are_swapped_and_the_translation_becomes_the_source(open_page: Open, both: Translator) -> None:
    page = open_page(both)
    page.fill("#text", "the dog\n\na cat")
    expect(page.locator(".n-best")).to_have_count(2)
    translation = f"{alone(both.into('de'), 'the dog')}\n\n{alone(both.into('de'), 'a cat')}"
    page.get_by_role("button", name="Swap languages").click()
    assert page.locator("#text").input_value() == translation
    assert [page.locator(f"#{name}").input_value() for name in ("source", "target")] == ["de", "en"]
    back = [alone(both.into("en"), line) for line in translation.split("\n") if line]
    texts = page.locator(".n-best li:first-child .text")
    expect(texts).to_have_text(back)
    page.fill("#text", "not translated yet")
    page.get_by_role("button", name="Swap languages").click()
    assert page.locator("#text").input_value() == "not translated yet"
    assert page.locator("#source").input_value() == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_api_page_fits_a_phone_and_has_enough_contrast(
    open_page: Open, translator: Translator, scheme: str
) -> None:
    page = open_page(translator, scheme, width=390)
    page.goto(f"{page.url}docs")
    check_contrast(page, scheme == "dark", 50)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_model_with_one_direction_has_no_swap_button(open_page: Open, translator: Translator) -> None:
    page = open_page(translator)
    expect(page.locator("#swap")).to_be_hidden()
    expect(page.locator("#arrow")).to_be_visible()


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_the_chosen_translation_is_copied(open_page: Open, translator: Translator, has_clipboard: bool) -> None:
    page = open_page(translator)
    expect(page.locator("#copy")).to_be_hidden()
    page.fill("#text", "the dog\n\na cat")
    expect(page.locator(".n-best")).to_have_count(2)
    page.locator(".n-best").first.locator("button").nth(1).click()
    if not has_clipboard:  # as on pages served over http from another machine
        page.evaluate(
            "window.clipboard = navigator.clipboard;Object.defineProperty(navigator, 'clipboard', { value: undefined })"
        )
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    second = translator.translate(["the dog"], n_best=3)[0].alternatives[0].text
    copied = page.evaluate("(window.clipboard || navigator.clipboard).readText()")
    assert copied == f"{second}\n\n{alone(translator, 'a cat')}"
    expect(page.locator("#copy")).to_have_text("Copy")
    assert page.locator("textarea").count() == 1


def test_the_page_explains_scores_in_plain_words(open_page: Open, translator: Translator) -> None:
    page = open_page(translator)
    page.fill("#text", "the dog")
    expect(page.locator("#hint")).to_contain_text("higher is better")
    assert not re.search("alpha|log-prob", page.locator("body").inner_text())


def test_the_translation_of_the_last_text_is_shown(open_page: Open, translator: Translator) -> None:
    def slow(lines: Sequence[str], **settings: Any) -> list[Translation]:
        time.sleep(0.3 if len(lines[0]) > 10 else 0.0)
        return translator.translate(lines, **settings)

    page = open_page(_with(translator, slow))
    for text in ("the dog sees the dog sees", "a cat"):
        page.fill("#text", text)
        page.get_by_role("button", name="Translate").click()
    expect(page.locator(".source")).to_have_text("a cat")
    page.wait_for_timeout(700)
    expect(page.locator(".source")).to_have_text("a cat")
    page.fill("#text", "")
    expect(page.locator(".line")).to_have_count(0)


def test_errors_are_shown(open_page: Open, translator: Translator) -> None:
    page = open_page(translator, max_characters=10)
    page.fill("#text", "the dog sees")
    expect(page.locator("#message")).to_contain_text("q has 12 characters")
    expect(page.locator("#count")).to_have_text("12 / 10")
    page.fill("#text", "a dog")
    expect(page.locator(".n-best li")).to_have_count(3)
    expect(page.locator("#message")).to_have_text("")


def test_the_key_is_requested_and_not_put_in_the_address(open_page: Open, translator: Translator) -> None:
    page = open_page(translator, api_key="s3cret")
    expect(page.locator("#key")).to_be_visible()
    page.fill("#text", "a dog")
    expect(page.locator("#message")).to_contain_text("requires an API key")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text("API key is wrong")
    page.fill("#key", "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator(".n-best li")).to_have_count(3)
    expect(page.locator("#key")).to_be_hidden()
    assert urlsplit(page.url)[2:] == ("/", "", "")
    content = page.content()
    assert "<title>Translate: tiny</title>" in content
    assert "s3cret" not in content
    page.reload()
    page.fill("#text", "a cat")
    expect(page.locator(".source")).to_have_text("a cat")


def test_languages_can_be_selected(open_page: Open, both: Translator) -> None:
    page = open_page(both)
    assert page.locator("#target option").all_inner_texts() == ["German"]
    page.fill("#text", "ein hund")
    expect(page.locator(".n-best li")).to_have_count(3)
    page.select_option("#source", "de")
    assert page.locator("#target option").all_inner_texts() == ["English"]
    expected = alone(both.into("en"), "ein hund")
    assert expected != alone(both.into("de"), "ein hund")
    expect(page.locator(".n-best .text").first).to_have_text(expected)
