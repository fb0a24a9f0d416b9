"""Each route of the API, with valid and with invalid requests."""

import asyncio
import copy
import gc
import html
import json
import logging
import queue
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from served import alone, recorded, run_async

from mtformer.decoding.lines.translation import Attention, Flag, Translation
from mtformer.decoding.translator import Translator
from mtformer.documents import html as documents
from mtformer.documents.html import Fragment
from mtformer.documents.html_process import HtmlProcess
from mtformer.serving import requests, responsiveness, service
from mtformer.serving.app import create_app
from mtformer.serving.requests import MAX_LINES, Text, TranslationRequest
from mtformer.serving.responsiveness import MAX_OVERLAPPING, NEVER, FullCollectionPause
from mtformer.text.style import StyleCounts, TrainingStyle

Start = Callable[..., TestClient]
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
EN_DE = {"source": "en", "target": "de"}
PLACES = ("/translate", "/words")


def test_texts_are_translated(client: TestClient, translator: Translator) -> None:
    """A request with a list of texts returns a list of translations."""
    answer = client.post("/translate", json={"q": "the dog sees", **EN_DE})
    assert (answer.status_code, answer.json()) == (200, {"translatedText": alone(translator, "the dog sees")})
    answer = client.post("/translate", json={"q": ["the dog", "", "a cat\na man"], **EN_DE})
    lines = f"{alone(translator, 'a cat')}\n{alone(translator, 'a man')}"
    assert answer.json()["translatedText"] == [alone(translator, "the dog"), "", lines]
    assert client.post("/translate", json={"q": [], **EN_DE}).json() == {"translatedText": []}


def test_forms_are_read_like_json(client: TestClient, translator: Translator) -> None:
    fields = {"q": "ein hund läuft", "source": "auto", "target": "de", "alternatives": "2", "format": "text"}
    form = client.post("/translate", content=urlencode(fields), headers=FORM)
    assert form.json() == client.post("/translate", json=fields).json()
    assert form.json()["translatedText"] == alone(translator, "ein hund läuft")
    several = client.post("/translate", content="q=a+dog&q=a+cat&source=en&target=de", headers=FORM)
    assert several.json()["translatedText"] == [alone(translator, "a dog"), alone(translator, "a cat")]


@pytest.mark.parametrize(
    "send",
    [
        {"params": EN_DE | {"q": "a dog"}},
        {"params": EN_DE, "data": {"q": "a dog"}},
        {"params": {"q": "a cat"}, "data": EN_DE | {"q": "a dog"}},
        {"params": {"q": "a cat"}, "json": EN_DE | {"q": "a dog"}},
        {"files": {key: (None, value) for key, value in {**EN_DE, "q": "a dog"}.items()}},
        {"params": EN_DE, "files": {"q": (None, "a dog")}},
    ],
)
def test_fields_may_be_in_the_query_string_or_a_multipart_form(
    client: TestClient, translator: Translator, send: dict[str, Any]
) -> None:
    answer = client.post("/translate", **send)
    assert answer.json() == {"translatedText": alone(translator, "a dog")}


def test_html_is_translated(client: TestClient, translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    """The tags of each text stay, in documents of several lines too; blocks are translated like lines."""
    texts = ['<p title="&lt;">the <b>dog</b></p>\n<script>1 < 2</script>', "a cat", "<br>", "<i>a &amp; man"]
    fields = {"q": texts, **EN_DE, "format": "html", "alternatives": 1}
    logging.getLogger("mtformer").addHandler(caplog.handler)
    answer = client.post("/translate", json=fields).json()
    logging.getLogger("mtformer").removeHandler(caplog.handler)
    plain = [[one.text for one in _n_best(translator, text, 2)] for text in ("the dog", "a cat", "a & man")]
    second = [alternatives[0] for alternatives in answer["alternatives"][:2]]
    for rank, found in enumerate((answer["translatedText"], second)):
        assert found[0].startswith('<p title="&lt;">')
        assert found[0].endswith("</p>\n<script>1 < 2</script>")
        assert re.sub("</?[bp][^<]*>|\n.*", "", found[0]) == plain[0][rank]
        assert found[1] == plain[1][rank]
    assert answer["translatedText"][2:] == ["<br>", f"<i>{html.escape(plain[2][0], quote=False)}</i>"]
    assert answer["alternatives"][2] == []
    num_lost = sum("lost tag" in flags for flags in answer["flags"])
    assert [Flag.REPAIRED in flags for flags in answer["flags"]] == [False, False, False, True]
    lost = f"tags in {num_lost} of 4 texts are empty or around other words"
    repaired = "repaired unclosed or wrongly nested tags in 1 of 4 texts"
    assert {one.getMessage() for one in caplog.records} == {repaired, *([lost] if num_lost else [])}
    form = client.post("/translate", content=urlencode({**fields, "q": texts[0]}), headers=FORM)
    assert form.json()["translatedText"] == answer["translatedText"][0]
    assert client.post("/words", json=fields).status_code == 400


def test_lost_tags_are_flagged(start: Start, translator: Translator) -> None:
    """A translation of one word has no place for the tags of other words."""
    mine, _ = recorded(translator)
    attention = Attention(["▁a", "▁red", "▁dog"], ["▁hund"], [[0.0, 0.0, 1.0]], [0])
    mine.translate = lambda lines, **_: [Translation("hund", 0.0, [], attention=attention) for _ in lines]
    fields = {"q": "a <b>red</b> <i>dog</i>", **EN_DE, "format": "html"}
    answer = start(mine).post("/translate", json=fields).json()
    assert answer == {"translatedText": "<b></b> <i>hund</i>", "flags": [Flag.LOST_TAG]}
    assert "flags" not in start(mine).post("/translate", json={"q": "a dog", **EN_DE}).json()


@pytest.mark.parametrize("fields", [
    {"q": "a <b>dog</b>", "format": "html", "alternatives": 1}, {"q": "a dog\n\na cat", "source": "auto"},
])  # fmt: skip
def test_texts_are_read_and_written_outside_of_the_event_loop(
    fields: dict[str, Any], client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that takes time in proportion to a text; /health answers in the meantime."""
    loops: dict[str, bool] = {}

    def observed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def observe(*arguments: Any, **keywords: Any) -> Any:
            loops[name] = asyncio._get_running_loop() is not None
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, observe)

    observed(documents, "read_html")
    observed(documents, "write_html")
    observed(requests, "_parse_object")
    observed(service, "detect")
    observed(service, "_join")
    observed(service, "JSONResponse")
    observed(Text, "write")
    assert client.post("/translate", json={**EN_DE, **fields}).status_code == 200
    assert {"_parse_object", "_join", "JSONResponse"} < set(loops)
    assert loops.keys() & {"read_html", "detect"}
    assert not any(loops.values())


LARGE = {
    "en": "<ul>" + "<li>the <b>dog</b> sees a <i>cat</i>\n" * 280,
    "ja": "<p>犬が<b>猫</b>を見る。</p>" * 500,
    "ar": "<div>الكلب <b>يرى</b> القط<br>" * 400,
}
"""HTML above the limit of small requests, in lines of few words."""


def copies(translator: Translator) -> Translator:
    """Return a translator whose translations are the lines themselves, with attention from each word to itself."""
    mine, _ = recorded(translator)

    def translate(lines: list[str], **_: object) -> list[Translation]:
        translations = []
        for line in lines:
            pieces = [f"▁{word}" for word in line.split()]
            weights = [[float(row == column) for column in range(len(pieces))] for row in range(len(pieces))]
            attention = Attention(pieces, pieces, weights, [0] * len(pieces))
            translations.append(Translation(line, 0.0, [], attention=attention))
        return translations

    mine.translate = translate
    return mine


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the HTML that is read in this process."""
    pages: list[str] = []
    read = documents.read_html

    def observe(html: str) -> Any:
        pages.append(html)
        return read(html)

    monkeypatch.setattr(documents, "read_html", observe)
    return pages


@pytest.mark.parametrize("language", LARGE)
def test_large_html_is_read_and_written_in_another_process(
    start: Start, translator: Translator, read_here: list[str], language: str
) -> None:
    text = LARGE[language]
    mine = copies(translator)
    client = start(mine, max_characters=20_000)
    answer = client.post("/translate", json={"q": text, **EN_DE, "format": "html"}).json()
    several = client.post("/translate", json={"q": [text[:5000], text[:6000]], **EN_DE, "format": "html"}).json()
    assert read_here == []

    expected = Fragment(text)
    written = expected.write(mine.translate(expected.lines))
    assert answer["translatedText"] == written.text
    assert (Flag.REPAIRED in answer["flags"]) == expected.is_repaired
    small = [client.post("/translate", json={"q": text[:n], **EN_DE, "format": "html"}).json() for n in (5000, 6000)]
    assert read_here == [text, text[:5000], text[:6000]]
    assert several == {name: [values[name] for values in small] for name in ("translatedText", "flags")}


def test_a_killed_process_for_html_is_one_error(
    start: Start, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that waits for it gets 503; the next one starts another process."""
    processes: list[HtmlProcess] = []
    answer = HtmlProcess.answer

    def killed_once(process: HtmlProcess, call: Any) -> Any:
        found = answer(process, call)
        if processes:
            return found
        processes.append(process)
        process._channel.close()  # as if the other end were closed
        return answer(process, call)

    monkeypatch.setattr(HtmlProcess, "answer", killed_once)
    client = start(copies(translator), max_characters=20_000)
    fields = {"q": LARGE["en"], **EN_DE, "format": "html"}
    refused = client.post("/translate", json=fields)
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
    assert refused.json() == {
        "error": "the process that reads HTML ended, most likely because memory ran out; send less HTML at a time"
    }
    assert processes[0].pid is None
    assert client.post("/translate", json=fields).status_code == 200


def test_the_words_of_each_line_are_encoded_alone_and_outside_of_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread runs while JSON is encoded; the last call encodes the warnings."""
    calls: list[bool] = []

    def observe(content: Any) -> JSONResponse:
        calls.append(asyncio._get_running_loop() is not None)
        return JSONResponse(content)

    monkeypatch.setattr(service, "JSONResponse", observe)
    monkeypatch.setattr(observe, "media_type", JSONResponse.media_type, raising=False)
    answer = client.post("/words", json={"q": "a dog\nein hund\na cat", **EN_DE})
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.json()["lines"]) == 3
    assert calls == [False] * 4


@pytest.mark.parametrize(("fields", "is_paused"), [
    ({"q": "the dog " * 2000}, True), ({"q": LARGE["en"], "format": "html"}, True), ({"q": "the dog"}, False),
])  # fmt: skip
def test_full_garbage_collections_are_paused_during_large_requests(
    start: Start, translator: Translator, fields: dict[str, Any], is_paused: bool
) -> None:
    thresholds = gc.get_threshold()
    mine = copies(translator)
    translate = mine.translate
    during: list[tuple[int, int, int]] = []

    def observe(lines: list[str], **_: object) -> list[Translation]:
        during.append(gc.get_threshold())
        return translate(lines)

    mine.translate = observe
    assert start(mine, max_characters=20_000).post("/translate", json={**EN_DE, **fields}).status_code == 200
    assert during == [(*thresholds[:2], NEVER if is_paused else thresholds[2])]
    assert gc.get_threshold() == thresholds


def test_full_garbage_collections_are_possible_if_large_requests_always_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collections: list[bool] = []
    monkeypatch.setattr(responsiveness.gc, "collect", lambda: collections.append(True))
    thresholds = gc.get_threshold()
    pause = FullCollectionPause()
    with pause():
        for _ in range(2 * MAX_OVERLAPPING):
            with pause():
                assert gc.get_threshold()[2] == NEVER
    assert len(collections) == 2
    assert gc.get_threshold() == thresholds


def test_forms_are_read_in_parts_as_by_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts never divide an escape sequence."""
    monkeypatch.setattr(requests, "UNQUOTED_AT_ONCE", 7)
    forms = [urlencode({"q": text, "z": ""}) for text in ("猫が 好き&+%=", "كلب" * 9, "a%2", "%" * 20, "🙂")]
    chance = random.Random(1)
    forms += ["".join(chance.choices("%%&=+aE7;", k=chance.randrange(40))) for _ in range(3000)]
    num_texts = 0
    for form in forms:
        try:
            expected = parse_qs(form, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            with pytest.raises(UnicodeDecodeError):
                requests._parse_form(form.encode())
            continue
        assert requests._parse_form(form.encode()) == expected
        num_texts += 1
    assert num_texts > 1000


@pytest.mark.parametrize(("text", "number"), [("", 1), ("a", 1), ("a\r\nb\rc\n\r\n\n\r", 7), ("\n" * 5, 6)])
def test_lines_are_counted_as_they_are_split(text: str, number: int) -> None:
    assert requests._num_lines(text) == len(Text(text).lines) == number


def test_line_breaks_are_kept(client: TestClient) -> None:
    text = "\r\na dog\r\n\r\n a cat\n\ra man\n"
    found = client.post("/translate", json={"q": text, **EN_DE}).json()["translatedText"]
    assert [part for part in found.split(" ") if not part.strip("\r\n")] == []
    assert "".join(c for c in found if c in "\r\n") == "\r\n\r\n\r\n\n\r\n"


def test_alternatives_are_the_next_best_translations(client: TestClient, translator: Translator) -> None:
    best, *others = [one.text for one in _n_best(translator, "the dog", 3)]
    for wanted, given in ((1, others[:1]), (2, others), (50, others)):
        answer = client.post("/translate", json={"q": "the dog", **EN_DE, "alternatives": wanted}).json()
        assert answer == {"translatedText": best, "alternatives": given}
    plain = client.post("/translate", json={"q": "the dog", **EN_DE, "alternatives": 0}).json()
    assert plain == {"translatedText": best}


def test_the_default_number_of_alternatives_is_set_by_n_best(translator: Translator) -> None:
    with TestClient(create_app(translator.with_decoding(n_best=3), "model", 100, 5)) as client:
        request = {"q": "the dog", **EN_DE}
        three = client.post("/translate", json={**request, "alternatives": 2}).json()
        assert client.post("/translate", json=request).json() == three
        assert len(three["alternatives"]) == 2
        none = client.post("/translate", json={**request, "alternatives": 0}).json()
        assert none == {"translatedText": three["translatedText"]}


def test_alternatives_of_several_lines_are_joined_by_rank(client: TestClient, translator: Translator) -> None:
    dog, cat = (_n_best(translator, line, 3) for line in ("the dog", "the cat"))
    answer = client.post("/translate", json={"q": "the dog\n\nthe cat", **EN_DE, "alternatives": 2}).json()
    assert answer["alternatives"] == [f"{dog[rank].text}\n\n{cat[rank].text}" for rank in (1, 2)]
    blank = client.post("/translate", json={"q": ["", "the dog"], **EN_DE, "alternatives": 1}).json()
    assert blank["alternatives"] == [[], [dog[1].text]]


def _n_best(translator: Translator, line: str, count: int) -> list[Any]:
    best = translator.translate([line], n_best=count)[0]
    return [best, *best.alternatives]


def test_source_auto_returns_the_detected_language(start: Start, client: TestClient, both: Translator) -> None:
    answer = client.post("/translate", json={"q": "the dog", "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "en"}
    two_ways = start(both)
    texts = ["ein hund", "der mann"]
    for target, other in (("en", "de"), ("de", "en")):
        found = two_ways.post("/translate", json={"q": texts, "source": "auto", "target": target}).json()
        assert found["translatedText"] == [alone(both.into(target), text) for text in texts]
        assert [one["language"] for one in found["detectedLanguage"]] == [other, other]
    tagged = '<p class="the dog and the cat of the house" title="this is the text of the page">der Hund</p>'
    fields = {"q": tagged, "source": "auto", "target": "en", "format": "html"}
    assert two_ways.post("/translate", json=fields).json()["detectedLanguage"]["language"] == "de"


def test_detect(start: Start, client: TestClient, both: Translator) -> None:
    assert client.post("/detect", json={"q": "whatever"}).json() == [{"confidence": 100.0, "language": "en"}]
    two_ways = start(both)
    texts = ["The man and the dog", "Der Mann und das Kind"]
    as_list = two_ways.post("/detect", json={"q": texts}).json()
    as_form = [two_ways.post("/detect", content=urlencode({"q": text}), headers=FORM).json() for text in texts]
    assert as_list == as_form
    assert [one["language"] for (one,) in as_list] == ["en", "de"]
    assert all(50 < one["confidence"] <= 100 for (one,) in as_list)


def test_languages_are_listed(start: Start, client: TestClient, both: Translator) -> None:
    english, german = {"code": "en", "name": "English"}, {"code": "de", "name": "German"}
    one_way = [{**english, "targets": ["de"]}, {**german, "targets": []}]
    assert client.get("/languages").json() == client.post("/languages").json() == one_way
    assert start(both).get("/languages").json() == [{**english, "targets": ["de"]}, {**german, "targets": ["en"]}]


def test_settings_and_health(start: Start, client: TestClient, translator: Translator) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 300
    assert settings["language"]["source"]["code"] == "en"
    assert (settings["keyRequired"], settings["apiKeys"]) == (False, False)
    assert start(translator, api_key="k").get("/frontend/settings").json()["keyRequired"] is True
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "fr"}, "does not translate fr to de; it translates en to de"),
        ({"target": "fr"}, "does not translate en to fr"),
        ({"source": "auto", "target": "en"}, "does not translate auto to en"),
        ({"source": "\ud800\n" + "y" * 200}, "does not translate ? y"),
        ({"target": None}, "target is missing"),
        ({"target": ["de"]}, "target is missing"),
        ({"source": ""}, "source is missing"),
        ({"q": None}, "q is missing"),
        ({"q": 3}, "q is missing, or is not a string or a list of strings"),
        ({"q": ["a", 3]}, "is not a string or a list of strings"),
        ({"format": "xml"}, "format must be text or html"),
        ({"format": "\ud800"}, "format must be text or html"),
        ({"alternatives": -1}, "alternatives must be an integer of at least 0"),
        ({"alternatives": "many"}, "alternatives must be an integer of at least 0"),
        ({"alternatives": True}, "alternatives must be an integer of at least 0"),
        ({"q": ["x" * 200, "y" * 101]}, "q has 301 characters; the maximum for a request is 300"),
        ({"q": [""] * (MAX_LINES + 1)}, "q has 1,001 lines"),
    ],
)
def test_invalid_fields(client: TestClient, fields: dict[str, Any], message: str) -> None:
    for place in PLACES:
        answer = client.post(place, content=json.dumps({"q": "x", **EN_DE, **fields}))
        assert answer.status_code == 400
        assert message in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"q": "x",}', "application/json", "not valid JSON: .* line 1 column"),
        (b"", "application/json", "q is missing"),
        (b"[" * 3000, "application/json", "not valid JSON: nested too deeply|not valid JSON: Expecting"),
        (b'{"q": "\xff"}', "application/json", "not valid JSON: 'utf-8' codec"),
        (b'{"q": ' + b"9" * 5000 + b"}", "application/json", "not valid JSON: .*digits"),
        (b'["x"]', "application/json", "not a JSON object"),
        (b"3", "text/plain", "not a JSON object"),
        (b"q=%ff&source=en&target=de", FORM["Content-Type"], "the form is not UTF-8"),
        (b"q=x&" * 2000, FORM["Content-Type"], "more than 1,000 fields"),
        (b'{"q": "x", "source": "en", "target": "de"}', FORM["Content-Type"], "JSON but sent as a form"),
        (b"source=en&target=de", FORM["Content-Type"], "q is missing"),
        (b"", FORM["Content-Type"], "q is missing"),
        (b"--x", "multipart/form-data", "Missing boundary"),
        (b"x" * 100, "multipart/form-data; boundary=x", "boundary|multipart"),
        (MULTIPART, "multipart/form-data; boundary=x", "q is missing"),
        (MULTIPART + b"\xff", "multipart/form-data; boundary=x", "the form is not UTF-8"),
        (MULTIPART.replace(b'"target"', b'"q"; filename="f"'), "multipart/form-data; boundary=x", "Too many files"),
    ],
)
def test_invalid_bodies(start: Start, translator: Translator, body: bytes, kind: str, message: str) -> None:
    client = start(translator, max_characters=1000)
    answer = client.post("/translate", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"]), answer.json()


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\n", "\t \u2028 \x85", "🙂🙃", "👩‍👩‍👧", "a\0dog", "\ud800", "dog \udfff\ud83d", "\u202eright",
     "x" * 300, "the dog sleeps. " * 18, "猫が走る。", "\ufeffdog", "<script>alert(1)</script>"],
)  # fmt: skip
def test_unusual_texts_are_translated(client: TestClient, text: str) -> None:
    body = json.dumps({"q": text, **EN_DE, "alternatives": 2})
    answer = client.post("/translate", content=body)
    assert answer.status_code == 200
    assert isinstance(answer.json()["translatedText"], str)
    assert answer.json()["translatedText"].count("\n") == text.count("\n")
    words = client.post("/words", content=body)
    assert words.status_code == 200
    best = [line["hypotheses"][0]["text"] for line in words.json()["lines"]]
    assert "\n".join(best) == answer.json()["translatedText"]


def test_the_longest_text_is_accepted_in_any_encoding_and_a_megabyte_is_refused(client: TestClient) -> None:
    fields = {"q": "🙂" * 300, **EN_DE}
    assert client.post("/translate", json=fields).status_code == 200
    assert client.post("/translate", content=urlencode(fields), headers=FORM).status_code == 200
    answer = client.post("/translate", json={"q": "x" * 2**20, **EN_DE})
    assert answer.status_code == 413
    assert "larger than" in answer.json()["error"]


def test_the_key_is_required(start: Start, translator: Translator) -> None:
    client = start(translator, api_key="Schlüssel")
    fields: dict[str, Any] = {"q": "a dog", **EN_DE}
    for place in ("/translate", "/words", "/detect"):
        assert client.post(place, json=fields).status_code == 403
        assert client.post(place, json={**fields, "api_key": ""}).status_code == 403
        for wrong in ("schlüssel", "Schlüssel2", 3, ["Schlüssel"], "\ud800", True):
            answer = client.post(place, content=json.dumps({**fields, "api_key": wrong}))
            assert (answer.status_code, answer.json()) == (
                403,
                {"error": "api_key is wrong; ask whoever runs this server for its key"},
            )
        assert client.post(place, json={**fields, "api_key": "Schlüssel"}).status_code == 200
        assert client.post(f"{place}?api_key=Schl%C3%BCssel", json=fields).status_code == 403
    assert client.get("/languages").status_code == client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", None, 200),
        ("127.0.0.1", None, 200),
        ("[::1]:8000", None, 200),
        ("LOCALHOST", None, 200),
        ("evil.example", None, 403),
        ("127.0.0.1.evil.example:8000", None, 403),
        ("[::1", None, 403),
        ("", None, 403),
        ("localhost:8000", "http://localhost:8000", 200),
        ("localhost:8000", "http://localhost:9000", 403),
        ("localhost:8000", "https://evil.example", 403),
        ("localhost:8000", "null", 403),
    ],
)
def test_requests_from_other_sites_are_refused(
    client: TestClient, start: Start, translator: Translator, host: str, origin: str | None, status: int
) -> None:
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    answer = client.post("/translate", json={"q": "a dog", **EN_DE}, headers=headers)
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status == 403)
    assert answer.headers.keys() == {"content-length", "content-type"}  # so a browser shows no other site the answer
    with_any_host = start(translator, hosts=None).get("/health", headers=headers)
    assert with_any_host.status_code == (status if origin else 200)


@pytest.mark.parametrize(
    ("method", "place", "status"), [("GET", "/no", 404), ("GET", "/translate", 405), ("GET", "/redoc", 404)]
)
def test_errors_are_json_for_all_routes(client: TestClient, method: str, place: str, status: int) -> None:
    answer = client.request(method, place)
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)


def test_the_api_is_described_without_a_network(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        *PLACES, "/detect", "/languages", "/frontend/settings", "/health", "/metrics"
    }  # fmt: skip
    for kind in ("application/json", FORM["Content-Type"], "multipart/form-data"):
        body = schema["paths"]["/translate"]["post"]["requestBody"]["content"][kind]["schema"]
        assert body["required"] == ["q", "source", "target"]
        assert set(body["properties"]) == set(TranslationRequest.model_fields)
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"(src|href)=\W*(https?:)?//|@import", page.text)
    assert all(field["description"] in page.text for field in body["properties"].values())
    assert all(path in page.text for path in schema["paths"])


def test_metrics_count_answered_requests(client: TestClient) -> None:
    client.post("/translate", json={"q": "a dog\n\na cat", **EN_DE})
    client.post("/words", json={"q": ["a man"], **EN_DE})
    client.post("/translate", json={})
    client.get('/no"path')
    lines = client.get("/metrics").text.splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert {key: value for key, value in figures.items() if "http_requests_total{" in key} == {
        f'mtformer_http_requests_total{{handler="{path}",method="{method}",status="{status}"}}': "1.0"
        for path, method, status in (
            ("/translate", "POST", 200), ("/words", "POST", 200), ("/translate", "POST", 400), ("none", "GET", 404)
        )
    }  # fmt: skip
    assert float(figures['mtformer_http_request_duration_seconds_sum{handler="/words",method="POST"}']) > 0
    assert (figures["mtformer_sentences_total"], figures["mtformer_queue"]) == ("3.0", "0.0")


def test_metrics_do_not_grow_with_invented_methods(client: TestClient) -> None:
    for number in range(3):
        assert client.request(f"METHOD{number}", "/translate").status_code == 405
    text = client.get("/metrics").text
    assert "METHOD" not in text
    assert 'mtformer_http_requests_total{handler="/translate",method="OTHER",status="405"} 3.0' in text


def test_a_bug_is_reported_in_the_log_and_not_to_the_client(
    start: Start, translator: Translator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("secret\ndetails")

    monkeypatch.setattr(logging.getLogger("mtformer"), "propagate", True)
    client = start(recorded(translator, fail)[0])
    answer = client.post("/translate", json={"q": "a dog", **EN_DE})
    assert answer.status_code == 500
    other = client.post("/words", json={"q": "a dog", **EN_DE})
    assert answer.json() == other.json() == {"error": "this is a bug in mtformer; see the log of the server"}
    assert 'handler="/translate",method="POST",status="500"} 1.0' in client.get("/metrics").text
    message = [record.message for record in caplog.records if record.name == "mtformer"]
    assert len(message) >= 2
    assert set(message) == {"RuntimeError: secret; this is a bug in mtformer, please report it"}


@pytest.fixture
def held(start: Start, translator: Translator) -> Iterator[tuple[TestClient, threading.Event, threading.Event]]:
    """A client of a server that translates nothing until `may_continue` is set, with a queue for one request."""
    begun, may_continue = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert may_continue.wait(20)

    client = start(recorded(translator, hold)[0], queue_size=1)
    yield client, begun, may_continue
    may_continue.set()


def test_a_full_queue_is_reported_at_once(held: Any, translator: Translator) -> None:
    client, begun, may_continue = held
    answers: queue.Queue[Any] = queue.Queue()

    def ask(text: str) -> None:
        answers.put(client.post("/translate", json={"q": text, **EN_DE}))

    threads = [threading.Thread(target=ask, args=["a dog"]) for _ in range(3)]
    threads[0].start()
    assert begun.wait(20)
    for thread in threads[1:]:
        thread.start()
    # One request waits; the other one is refused at once, and so are later ones.
    at_once = [answers.get(timeout=20)] + [client.post(place, json={"q": "x", **EN_DE}) for place in PLACES]
    for refused in at_once:
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "too many requests" in refused.json()["error"]
    may_continue.set()
    for thread in threads:
        thread.join(20)
    assert [answers.get_nowait().json() for _ in range(2)] == [{"translatedText": alone(translator, "a dog")}] * 2


def test_no_request_waits_forever(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = held
    monkeypatch.setattr(service, "ANSWER_SECONDS", 0.2)
    answer = client.post("/translate", json={"q": "a dog", **EN_DE})
    assert answer.status_code == 503
    assert "took too long" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) > 0
    assert "took too long" in client.post("/words", json={"q": "a dog", **EN_DE}).json()["error"]


def test_words_and_attention_of_a_translation(client: TestClient, translator: Translator) -> None:
    lines = client.post("/words", json={"q": "the dog sleeps\n\na cat", **EN_DE, "alternatives": 2}).json()["lines"]
    for line, text in zip(lines, ["the dog sleeps", "", "a cat"], strict=True):
        expected = _n_best(translator, text, 3)
        assert [one["text"] for one in line["hypotheses"]] == [one.text for one in expected]
        assert [one["score"] for one in line["hypotheses"]] == pytest.approx([one.score for one in expected], abs=1e-3)
    assert "".join(lines[0]["source"]).strip() == "the dog sleeps"
    assert lines[1]["source"] == []
    for word in lines[0]["hypotheses"][0]["words"]:
        assert 0 < sum(weight for _, weight in word["attention"]) <= 1.01


class Caller:
    """Calls an application as a server would, with a body that may never end and a client that may disconnect."""

    def __init__(self, client: TestClient, place: str) -> None:
        self.app = client.app
        self.scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": place, "raw_path": place.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"localhost")], "state": {},
        }  # fmt: skip
        self.num_read = 0
        self.sent: list[dict[str, Any]] = []

    def call(self, bodies: Callable[[], Any]) -> None:
        """Wait for the response; `bodies` returns an async iterator over the messages that the application receives."""
        messages = bodies()

        async def receive() -> Any:
            self.num_read += 1
            return await anext(messages)

        async def send(message: Any) -> None:
            self.sent.append(message)

        run_async(asyncio.wait_for(self.app(self.scope, receive, send), 20))

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


def test_an_endless_body_is_read_up_to_the_maximum_size(client: TestClient) -> None:
    async def endless() -> Any:
        while True:
            yield {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    caller = Caller(client, "/translate")
    caller.call(endless)
    assert caller.status == 413
    assert caller.num_read < 12


def test_a_body_that_does_not_arrive_times_out(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck() -> Any:
        yield {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.sleep(60)

    async def broken_off() -> Any:
        yield {"type": "http.request", "body": b"{", "more_body": True}
        yield {"type": "http.disconnect"}

    monkeypatch.setattr(requests, "BODY_SECONDS", 0.1)
    caller = Caller(client, "/translate")
    caller.call(stuck)
    assert caller.status == 408
    gone = Caller(client, "/translate")
    gone.call(broken_off)
    assert gone.status == 400


@pytest.mark.parametrize("place", PLACES)
def test_a_request_is_dropped_when_its_client_disconnects(start: Start, translator: Translator, place: str) -> None:
    begun, may_continue = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert may_continue.wait(20)

    mine, calls = recorded(translator, hold)
    client = start(mine)
    first = threading.Thread(target=client.post, args=("/translate",), kwargs={"json": {"q": "first", **EN_DE}})
    first.start()
    assert begun.wait(20)

    async def goes_away() -> Any:
        yield {"type": "http.request", "body": json.dumps({"q": "gone", **EN_DE}).encode(), "more_body": False}
        yield {"type": "http.disconnect"}
        await asyncio.sleep(60)

    Caller(client, place).call(goes_away)
    may_continue.set()
    first.join(20)
    after = client.post("/translate", json={"q": "a cat", **EN_DE})
    assert after.json() == {"translatedText": alone(translator, "a cat")}
    assert calls == [["first"], ["a cat"]]


def test_tags_in_a_request_are_text(start: Start, both: Translator) -> None:
    """The bundle has them as user-defined symbols, as version 0.3 did."""
    tokenizer = both.tokenizers.src
    ids = {tokenizer.piece_id(tag) for tag in ("<2de>", "<2en>")}
    assert set(tokenizer.tag_ids) == ids
    client = start(both)
    for text in ("<2en> the dog", "the <2de> dog"):
        [expected] = both.into("de").translate([text])
        assert ids.isdisjoint(tokenizer.encode([text])[0])
        found = client.post("/translate", json={"q": text, "source": "en", "target": "de"}).json()
        assert found["translatedText"] == expected.text


@pytest.mark.parametrize("place", PLACES)
def test_text_unlike_the_training_text_is_told(
    place: str, start: Start, translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer says so if its own text shows it; the log says so once, also after many short texts."""
    trained = copy.copy(translator)
    trained.style = TrainingStyle(src={"en": StyleCounts.of_lines(["the dog runs , and the cat sleeps ."] * 50)})
    client = start(trained)
    lines = "\n".join(["The dog runs, and the cat."] * 6)
    usual = "\n".join(["the dog runs , and the cat ."] * 6)

    unlike = client.post(place, json={"q": lines, **EN_DE}).json()["warnings"]
    assert unlike == [
        "the input is unlike the training text: the training text has spaces before commas and full stops, the input "
        "does not; give input in the style of the training text, or train on text like it"
    ]
    assert not client.post(place, json={"q": usual, **EN_DE}).json().get("warnings")
    assert not client.post(place, json={"q": "The dog runs.", **EN_DE}).json().get("warnings")
    client.post(place, json={"q": lines, **EN_DE})
    assert caplog.messages.count(unlike[0]) == 1


def test_many_short_texts_unlike_the_training_text_are_logged_once(
    start: Start, translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    trained = copy.copy(translator)
    trained.style = TrainingStyle(src={"en": StyleCounts.of_lines(["the dog runs , and the cat sleeps ."] * 50)})
    client = start(trained)
    for _ in range(12):
        assert "warnings" not in client.post("/translate", json={"q": "the dog, a cat.", **EN_DE}).json()
    [message] = [message for message in caplog.messages if "unlike the training text" in message]
    assert "the training text has spaces before commas and full stops, the input does not" in message
