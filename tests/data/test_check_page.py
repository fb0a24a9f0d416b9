"""The page: whole in itself, well-formed, and nothing of a corpus is taken for markup."""

import re
from html.parser import HTMLParser

import pytest

from mtformer.config.data import DataConfig
from mtformer.data.check import check_corpora
from mtformer.data.check_making import make_report
from mtformer.data.check_page import page
from mtformer.errors import MtformerError
from mtformer.text.tokenizer import TokenizerPair

VOID = {"meta", "link", "br", "img", "hr", "input"}
SCRIPT = "<script>alert('no')</script> & \"so on\""


class Reader(HTMLParser):
    """Checks that tags close in turn, and gathers attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizers: TokenizerPair) -> str:
    folder = tmp_path_factory.mktemp('<odd> & "name"')
    lines = [f"line {number} of red and green" for number in range(50)]
    lines += [SCRIPT, "a \u202e turned \0 line", "one 猫 猫"]
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    sets = {name: {"src": str(folder / f"{name}.en"), "tgt": str(folder / f"{name}.de")} for name in ("train", "test")}
    settings = {"src_lang": "en", "tgt_lang": "de", "num_workers": 1}
    data = DataConfig.model_validate({**settings, "train": [sets["train"]], "test": {"a-b": sets["test"]}})
    return page(make_report(check_corpora(data, tokenizers)), ["a limit <b>is</b> broken"])


def test_it_is_well_formed_and_text_stays_text(made: str) -> None:
    reader = Reader(made)
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert SCRIPT in reader.text
    assert "a \\u202e turned \\x00 line" in reader.text
    assert "a limit <b>is</b> broken" in reader.text


def test_it_needs_nothing_from_elsewhere(made: str) -> None:
    reader = Reader(made)
    links = [value for name, value in reader.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert [link for link in links if not link.startswith("#")] == []
    assert not {"link", "iframe", "object", "embed", "img"} & set(reader.tags)
    assert re.findall(r"url\((?!#)|@import|https?:", made) == []


def test_charts_take_the_colours_of_the_page_and_keep_their_names_apart(made: str) -> None:
    reader = Reader(made)
    names = [value for name, value in reader.attributes if name == "id"]
    assert len(names) == len(set(names))
    assert {value[1:] for name, value in reader.attributes if name == "href"} <= set(names)
    assert set(re.findall(r"url\(#([^)]*)\)", made)) <= set(names)
    assert reader.tags.count("svg") == 2 * (3 * 2 + 1)
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", made))
    assert colours <= {"none", "currentColor", "var(--bar)"}
    assert "prefers-color-scheme: dark" in made
    assert "width=device-width" in made


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_one_line_says_what_to_install() -> None:
    data = DataConfig(src_lang="en", tgt_lang="de")
    with pytest.raises(MtformerError, match=r"pip install 'mtformer\[report\]'"):
        page(make_report(check_corpora(data, None)), [])
