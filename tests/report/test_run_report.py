"""The report in a browser: whole, alone, readable in light and dark and on a phone, and text stays text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page
from small_run import IMAGE, PAIRS, SCRIPT, STEPS, Opens, begin_run, finished_run, set_state

from mtformer.decoding.attention_maps import attention_maps
from mtformer.decoding.translator import Translator
from mtformer.files import write_checksums
from mtformer.report.run_report import write_report
from mtformer.run_dir import SCORES, WEIGHTS, RunDir
from mtformer.training.checkpoint import save_averaged, save_checkpoint
from mtformer.training.history import append_record
from mtformer.weights import read_weights

CURVES = ["loss", "perplexity", "bleu", "chrf", "learning_rate", "grad_norm", "tokens_per_second", "memory_gb"]
SECTIONS = [
    "curves", "scores", "samples", "sentences", "attention", "speed", "data", "parameters", "config", "commands",
]  # fmt: skip
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    const alpha = numbers(colour)[3] ?? 1;
    return alpha === 0 && one.parentElement ? ground(one.parentElement) : colour;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const texts = [...document.querySelectorAll("body *:not(script, noscript, svg, svg *)")]
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => ratio(getComputedStyle(one).color, ground(one)));
  const body = getComputedStyle(document.body).backgroundColor;
  const strokes = [...document.querySelectorAll(".legend li")]
    .map((one) => [...one.querySelectorAll("path")].map((path) => getComputedStyle(path).stroke))
    .map((colours) => colours.find((colour) => colour.startsWith("rgb")));
  return {texts, strokes, curves: strokes.map((colour) => ratio(colour, body)), ground: light(body)};
}"""


def shades(page: Page, number: int = 0) -> list[float]:
    """How dark the cells of a map are drawn."""
    cells = page.locator(".map").nth(number).locator("tbody td")
    return cells.evaluate_all("cells => cells.map((cell) => Number(getComputedStyle(cell, '::before').opacity))")


def choose(page: Page, **choices: int) -> None:
    """The options of these selectors, counted from 0."""
    for key, number in choices.items():
        page.select_option(f"[data-choice={key}]", index=number)


def keep_last_line(path: Path) -> None:
    """Fewer curves are drawn sooner."""
    path.write_text(path.read_text().splitlines()[-1] + "\n")


def test_every_part_and_every_picture_is_there(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    page = opens(made.report)
    assert page.locator("section").evaluate_all("all => all.map((one) => one.id)") == SECTIONS
    assert page.locator("nav a").evaluate_all("all => all.map((one) => one.getAttribute('href').slice(1))") == SECTIONS
    assert page.locator("figure").evaluate_all("all => all.map((one) => one.id)") == [f"curve-{c}" for c in CURVES]
    for curve in CURVES:
        box = page.locator(f"#curve-{curve} svg").bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 100
        assert page.locator(f"#curve-{curve} .curve path").count() > 0
        assert page.locator(f"#curve-{curve} .grid").count() > 1
    names = page.locator("[id]").evaluate_all("all => all.map((one) => one.id)")
    assert len(names) == len(set(names))
    assert made.report.stat().st_size < 500_000
    page.screenshot(path=tmp_path / "light.png", full_page=True)


def test_text_stays_text(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    assert page.title() == "Run a <b>bold<b> run"
    assert page.locator("img, b").count() == 0
    assert page.locator("script:not([type])").count() == 1
    shown = page.locator("body").inner_text()
    for text in (SCRIPT, IMAGE, PAIRS[0][0], "a <b>bold<b> run"):
        assert text in shown
    choose(page, sentence=1)
    assert page.title() == "Run a <b>bold<b> run"


def test_the_map_is_that_of_the_chosen_head(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    source = page.locator(".texts").inner_text().split(" → ")[0]
    maps = attention_maps(Translator.load(made.path, device="cpu"), source)
    whole = {"cross": maps.cross_LHTS, "encoder": maps.encoder_LHSS, "decoder": maps.decoder_LHTT}
    drawn = []
    for number, (kind, weights_LHQK) in enumerate(whole.items()):
        choose(page, kind=number)
        for layer in range(2):
            choose(page, layer=layer)
            heads = [weights_LHQK[layer].mean(dim=0), *weights_LHQK[layer]]
            for head, weights_QK in enumerate(heads):
                choose(page, head=head)
                drawn.append(shades(page))
                expected = (weights_QK / weights_QK.max()).flatten()
                assert torch.tensor(drawn[-1]) == pytest.approx(expected, abs=0.06), (kind, layer, head)
    assert len({tuple(one) for one in drawn}) == len(drawn)
    assert page.locator(".map tbody th").all_inner_texts() == maps.tgt_pieces
    assert page.locator(".map thead th").all_inner_texts() == maps.decoder_keys
    sources = set()
    for number in range(page.locator("[data-choice=sentence] option").count()):
        choose(page, sentence=number)
        sources.add(page.locator(".texts").inner_text().split(" → ")[0])
    assert sources == {src for src, _ in PAIRS}


def test_the_map_is_read_with_keys(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    page.locator("[data-choice=head]").focus()
    message = [page.locator(".status").inner_text()]
    for key in ("Tab", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        message.append(page.locator(".status").inner_text())
    assert message[5] == message[1]
    assert len(set(message)) == 5
    first_row, first_column = (page.locator(f".map {part} th").first.inner_text() for part in ("tbody", "thead"))
    assert message[1].startswith(f"{first_row} looks at {first_column}: 0.")


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_contrast(made: RunDir, opens: Opens, scheme: str, is_dark: bool, tmp_path: Path) -> None:
    page = opens(made.report, color_scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    found = page.evaluate(CONTRAST)
    assert (found["ground"] < 0.1) == is_dark
    assert len(found["texts"]) > 100
    assert min(found["texts"]) >= 4.5
    page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_six_runs_have_six_colours_that_stand_out(opens: Opens, tmp_path: Path) -> None:
    run = begin_run(tmp_path / "0")
    shutil.rmtree(run.tokenizer)
    append_record(run.metrics, "dev", 20, bleu=1.0)
    append_record(run.metrics, "dev", 40, bleu=2.0)
    paths = [run.path, *(Path(shutil.copytree(run.path, tmp_path / str(number))) for number in range(1, 6))]
    write_report(paths, tmp_path / "six.html")
    for scheme in ("light", "dark"):
        page = opens(tmp_path / "six.html", color_scheme=scheme)
        assert page.locator(".legend li").all_inner_texts() == ["0", "1", "2", "3", "4", "5"]
        found = page.evaluate(CONTRAST)
        assert len(set(found["strokes"])) == 6
        assert min(found["curves"]) >= 3
        drawn = page.locator("#curve-bleu .curve path").evaluate_all(
            "all => all.map((path) => getComputedStyle(path).stroke)"
        )
        assert set(found["strokes"]) <= set(drawn)
        page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_a_phone_does_not_scroll_sideways(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    page = opens(made.report, viewport={"width": 390, "height": 844})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    for kind in range(3):
        choose(page, kind=kind)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.screenshot(path=tmp_path / "phone.png", full_page=True)


def test_several_runs(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    other = finished_run(tmp_path / "other", seed=3)
    write_report([made.path, other.path], tmp_path / "both.html")
    page = opens(tmp_path / "both.html", viewport={"width": 390, "height": 844})
    assert page.title() == "2 runs"
    assert page.locator(".legend li").all_inner_texts() == ["a <b>bold<b> run", "other"]
    states = [row.split("\t")[:2] for row in page.locator("header tr").all_inner_texts()[1:]]
    finished = f"is finished: step {STEPS} of {STEPS}"
    assert states == [["a <b>bold<b> run", finished], ["other", finished]]
    rows = page.locator("#differences tr").all_inner_texts()
    assert ["training.seed", "0", "3"] in [row.split("\t") for row in rows]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#run-2 summary", has_text="Attention").click()
    before, first = shades(page, 1), shades(page, 0)
    page.locator("#run-2 [data-choice=head]").select_option(index=1)
    assert shades(page, 1) != before
    assert shades(page, 0) == first


# ---- runs that are not finished, or of another version --------------------------------------------------------------


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_run_that_has_just_begun(opens: Opens, tmp_path: Path, has_tokenizer: bool) -> None:
    run = begin_run(tmp_path / "new")
    if not has_tokenizer:
        shutil.rmtree(run.tokenizer)
    write_report([run.path], run.report)
    page = opens(run.report)
    assert page.locator("header p").first.inner_text() == "new has not begun to train. Nothing is logged yet"
    ids = page.locator("section").evaluate_all("all => all.map((one) => one.id)")
    assert ids == [*(["parameters"] if has_tokenizer else []), "config", "commands"]


def test_a_bundle(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    bundle = RunDir(tmp_path / "bundle")
    shutil.copytree(made.tokenizer, bundle.tokenizer)
    shutil.copyfile(made.config, bundle.config)
    shutil.copyfile(made.checkpoint(STEPS) / WEIGHTS, bundle.bundle_weights)
    write_checksums(bundle.path)
    write_report([bundle.path], bundle.report)
    page = opens(bundle.report)
    assert "is a bundle" in page.locator("header").inner_text()
    assert page.locator(".unread").count() == 0
    assert "mtformer train" not in page.locator("#commands").inner_text()


@pytest.mark.parametrize(("state", "message"), [
    ("running", "was killed, or its machine went down; it can be resumed"),  # nobody holds the lock
    ("interrupted", "was stopped by a signal and can be resumed"),
    ("failed", f"failed: step {STEPS} of 900. a bad {IMAGE} gradient"),
])  # fmt: skip
def test_a_run_that_did_not_finish(opens: Opens, tmp_path: Path, state: str, message: str) -> None:
    run = begin_run(tmp_path / "run", max_steps=900)
    append_record(run.metrics, "train", STEPS, loss=3.0)
    set_state(run, state, f"a bad {IMAGE} gradient" if state == "failed" else None)
    write_report([run.path], run.report)
    page = opens(run.report)
    assert message in page.locator("header").inner_text()
    assert f"step {STEPS} of 900" in page.locator("header").inner_text()
    assert "--resume" in page.locator("#commands").inner_text()
    assert page.locator("figure").count() == 1


def test_a_config_of_a_newer_version(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    run = RunDir(shutil.copytree(made.path, tmp_path / "newer"))
    run.config.write_text(f"{run.config.read_text()}new_section:\n  key: '{IMAGE}'\n")
    write_report([run.path], run.report)
    page = opens(run.report)
    assert "config.yaml:136: not valid YAML" in page.locator(".unread").first.inner_text()
    assert IMAGE in page.locator("#config pre").inner_text()
    assert page.locator("figure").count() == len(CURVES)


def test_damaged_files_are_reported_and_the_rest_is_shown(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    run = RunDir(shutil.copytree(made.path, tmp_path / "damaged"))
    keep_last_line(run.metrics)
    (run.checkpoint(STEPS) / WEIGHTS).write_bytes(b"cut")
    (run.evaluation("small") / "hypotheses.txt").write_text("other\n")
    write_report([run.path], run.report)
    page = opens(run.report)
    unread = " ".join(page.locator(".unread").all_inner_texts())
    assert "model.safetensors: cut short or changed" in unread
    assert "hypotheses.txt: changed since it was scored" in unread
    ids = page.locator("section").evaluate_all("all => all.map((one) => one.id)")
    assert ids == [name for name in SECTIONS if name not in ("attention", "sentences")]


def test_unlike_scores_are_reported(made: RunDir, tmp_path: Path, opens: Opens) -> None:
    other = RunDir(shutil.copytree(made.path, tmp_path / "other"))
    keep_last_line(other.metrics)
    card: dict[str, Any] = json.loads((other.evaluation("small") / SCORES).read_text())
    card["text"]["references"] = ["0" * 64]
    (other.evaluation("small") / SCORES).write_text(json.dumps(card))
    write_report([made.path, other.path], tmp_path / "both.html")
    message = opens(tmp_path / "both.html").locator("#scores .bad").all_inner_texts()
    assert message == ["other does not compare with a <b>bold<b> run: different references"]


def test_the_report_names_the_weights_that_commands_use(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    weights = read_weights(run.checkpoint(STEPS) / WEIGHTS)
    save_checkpoint(run, STEPS, weights, {}, {"bleu": 24.26}, {})
    save_averaged(run, [STEPS], weights, {"bleu": 21.71})
    write_report([run.path], run.report)
    text = (
        "run: commands use the best checkpoint (step 60, dev bleu 24.26); the averaged weights (dev bleu 21.71) differ"
    )
    assert text in run.report.read_text()
