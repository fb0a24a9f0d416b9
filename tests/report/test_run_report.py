"""The report in a browser: complete, without a network, readable in light and dark mode and on a phone."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from contrast import check_contrast, contrast
from playwright.sync_api import Page
from small_run import IMAGE, PAIRS, SCRIPT, STEPS, Opens, begin_run, finished_run, set_state, write_history

from mtformer.config.schema import EvaluationConfig
from mtformer.decoding.attention_maps import attention_maps
from mtformer.decoding.translator import Translator
from mtformer.evaluation.card import EvalSet, ScoredTranslations, write_card
from mtformer.evaluation.scores import score
from mtformer.experiment.runs import RunContents
from mtformer.files import write_checksums
from mtformer.report.run_report import write_report
from mtformer.report.tables import resumes
from mtformer.run_dir import SCORES, WEIGHTS, RunDir
from mtformer.training.checkpoint import Checkpoint, save_averaged, save_checkpoint
from mtformer.training.history import append_record
from mtformer.weights import read_weights

CURVES = [
    "loss", "loss-time", "perplexity", "bleu", "bleu-time", "chrf", "learning_rate", "grad_norm", "tokens_per_second",
    "memory_gb",
]  # fmt: skip
SECTIONS = [
    "curves", "scores", "samples", "sentences", "attention", "starts", "speed", "data", "parameters", "config",
]  # fmt: skip


LINES = """heads => heads.map((head) => {
  const walker = document.createTreeWalker(head, NodeFilter.SHOW_TEXT), lines = [];
  let bottom = 0;
  while (walker.nextNode()) for (let i = 0; i < walker.currentNode.length; i++) {
    const range = document.createRange();
    range.setStart(walker.currentNode, i);
    range.setEnd(walker.currentNode, i + 1);
    const box = range.getBoundingClientRect();
    if (box.top >= bottom) lines.push("");
    bottom = Math.max(bottom, box.top + 1);
    lines[lines.length - 1] += range.toString();
  }
  return lines;
})"""
"""JavaScript that returns the lines of text in elements as they are wrapped on the page."""


def shades(page: Page, number: int = 0) -> list[float]:
    """Return the opacity of each cell of an attention map."""
    cells = page.locator(".map").nth(number).locator("tbody td")
    return cells.evaluate_all("cells => cells.map((cell) => Number(getComputedStyle(cell, '::before').opacity))")


def choose(page: Page, **choices: int) -> None:
    """Select options by their numbers, counted from 0."""
    for key, number in choices.items():
        page.select_option(f"[data-choice={key}]", index=number)


def keep_last_line(path: Path) -> None:
    """Keep only the last line of a file, which makes the report faster."""
    path.write_text(path.read_text().splitlines()[-1] + "\n")


def test_all_sections_and_charts_are_present(made: RunDir, opens: Opens, tmp_path: Path) -> None:
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


def test_markup_in_text_is_shown_as_text(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    assert page.title() == "Run a <b>bold<b> run"
    assert page.locator("img, b").count() == 0
    assert page.locator("script:not([type])").count() == 1
    shown = page.locator("body").inner_text()
    for text in (SCRIPT, IMAGE, PAIRS[0][0], "a <b>bold<b> run"):
        assert text in shown
    choose(page, sentence=1)
    assert page.title() == "Run a <b>bold<b> run"


def test_the_map_shows_the_selected_head(made: RunDir, opens: Opens) -> None:
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


def test_the_map_can_be_navigated_with_the_keyboard(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    page.locator("[data-choice=head]").focus()
    message = [page.locator(".status").inner_text()]
    for key in ("Tab", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        message.append(page.locator(".status").inner_text())
    assert message[5] == message[1]
    assert len(set(message)) == 5
    first_row, first_column = (page.locator(f".map {part} th").first.inner_text() for part in ("tbody", "thead"))
    assert message[1].startswith(f"{first_row} attends to {first_column}: 0.")


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_text_and_curves_have_enough_contrast(
    made: RunDir, opens: Opens, scheme: str, is_dark: bool, tmp_path: Path
) -> None:
    page = opens(made.report, color_scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    check_contrast(page, is_dark, 100)
    page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_six_runs_have_six_distinct_colors_with_enough_contrast(opens: Opens, tmp_path: Path) -> None:
    run = begin_run(tmp_path / "0")
    shutil.rmtree(run.tokenizer)
    append_record(run.metrics, "dev", 20, bleu=1.0)
    append_record(run.metrics, "dev", 40, bleu=2.0)
    paths = [run.path, *(Path(shutil.copytree(run.path, tmp_path / str(number))) for number in range(1, 6))]
    write_report(paths, tmp_path / "six.html")
    for scheme in ("light", "dark"):
        page = opens(tmp_path / "six.html", color_scheme=scheme)
        assert page.locator(".legend li").all_inner_texts() == ["0", "1", "2", "3", "4", "5"]
        check_contrast(page, scheme == "dark", 20)
        assert len(contrast(page)["curves"]) == 6
        page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_the_page_does_not_scroll_sideways_on_a_phone(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    page = opens(made.report, viewport={"width": 390, "height": 844})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    for kind in range(3):
        choose(page, kind=kind)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.screenshot(path=tmp_path / "phone.png", full_page=True)


def test_the_report_of_several_runs(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    other = finished_run(tmp_path / "other", seed=3)
    write_report([made.path, other.path], tmp_path / "both.html")
    page = opens(tmp_path / "both.html", viewport={"width": 390, "height": 844})
    assert page.title() == "2 runs"
    assert page.locator(".legend li").all_inner_texts() == ["a <b>bold<b> run", "other"]
    states = [row.split("\t")[:2] for row in page.locator("header tr").all_inner_texts()[1:]]
    finished = f"finished: step {STEPS} of {STEPS}"
    assert states == [["a <b>bold<b> run", finished], ["other", finished]]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#run-2 summary", has_text="Attention").click()
    before, first = shades(page, 1), shades(page, 0)
    page.locator("#run-2 [data-choice=head]").select_option(index=1)
    assert shades(page, 1) != before
    assert shades(page, 0) == first


def seeds(folder: Path, name: str, *numbers: int, **training: object) -> list[Path]:
    """Return runs that differ only in their seeds; they have curves but no tokenizer."""
    base = begin_run(folder / name, seed=7777, **training)
    shutil.rmtree(base.tokenizer)
    set_state(base, "finished")
    paths = [Path(shutil.copytree(base.path, folder / f"{name},seed={number}")) for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        run = RunDir(path)
        run.config.write_text(run.config.read_text().replace("seed: 7777", f"seed: {number}"))
        write_history(run, number)
    return paths


def test_seeds_share_a_curve_with_a_band_but_have_separate_rows_of_settings(opens: Opens, tmp_path: Path) -> None:
    runs = [*seeds(tmp_path, "base", 1, 2, 3), *seeds(tmp_path, "warm", 1, warmup_steps=9, keep_last=7)]
    write_report(runs, tmp_path / "report.html")
    page = opens(tmp_path / "report.html")
    assert page.locator(".legend li").all_inner_texts() == ["base (mean of 3 seeds)", "warm,seed=1"]
    assert page.locator("#curve-bleu .curve path").count() == 2
    (low, high), (mean_low, mean_high) = (
        page.locator(f"#curve-loss .{kind} path").first.evaluate(
            "path => [path.getBBox().y, path.getBBox().y + path.getBBox().height]"
        )
        for kind in ("band", "curve:not(.thin)")
    )
    assert low < mean_low < mean_high < high
    assert page.locator(".band").count() == page.locator("figure").count()
    rows = [row.split("\t") for row in page.locator("#differences tr").all_inner_texts()]
    assert rows == [
        ["run", "seed", "warmup_steps", "keep_last"],
        *([f"base,seed={number}", str(number), "4000", "5"] for number in (1, 2, 3)),
        ["warm,seed=1", "1", "9", "7"],
    ]


def test_means_and_deviations_of_test_scores(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    runs = [RunDir(shutil.copytree(made.path, tmp_path / f"base-{number}")) for number in (1, 2)]
    for run, bleu in zip(runs, (10.0, 20.0), strict=True):
        keep_last_line(run.metrics)
        run.config.write_text(run.config.read_text().replace("seed: 0", f"seed: {bleu:.0f}", 1))
        card = json.loads((run.evaluation("small") / SCORES).read_text())
        card["scores"][0]["value"] = bleu
        (run.evaluation("small") / SCORES).write_text(json.dumps(card))
    write_report([run.path for run in runs], tmp_path / "both.html")
    rows = opens(tmp_path / "both.html").locator("#scores table").first.locator("tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [
        ["run", "BLEU"], ["base (mean of 2 seeds)", "15.00 ± 7.07"], ["base-1", "10.00"], ["base-2", "20.00"],
    ]  # fmt: skip


def test_resumes_are_listed_and_marked_where_the_learning_rate_jumps(opens: Opens, tmp_path: Path) -> None:
    run = RunDir(seeds(tmp_path, "run", 1)[0])
    changes = {
        "training.learning_rate": [0.003, 0.001],
        "device": ["cpu", "cuda"],
        "training data": ["0" * 64, "1" * 64],
    }
    append_record(run.metrics, "resume", 30, time="2026-01-02T00:00:00+00:00", changes=changes)
    append_record(run.metrics, "resume", 40, changes={"torch": ["2.12", "2.13"]})
    append_record(run.metrics, "resume", 50)  # as written by an earlier version
    write_report([run.path], run.report)
    page = opens(run.report)
    assert [row.split("\t") for row in page.locator("#starts tr").all_inner_texts()] == [
        ["", "time", "step", "device", "changes"],
        ["started", "2026-01-01 00:00:00 UTC", "0", "cpu", ""],
        ["resumed", "2026-01-02 00:00:00 UTC", "30", "cuda",
         "training.learning_rate 0.003 → 0.001, training data changed"],
        ["resumed", "–", "40", "cuda", "torch 2.12 → 2.13"],
        ["resumed", "–", "50", "cuda", ""],
    ]  # fmt: skip
    lines = page.locator("#curve-learning_rate .change-text").inner_text().splitlines()
    assert lines[-1] == "run,seed=1, step 30, resumed with: training.learning_rate 0.003 → 0.001"
    assert page.locator("#starts h2").inner_text() == "Starts and resumes"
    ticks = dict(page.locator("#curve-learning_rate text[text-anchor=middle]").evaluate_all(
        "all => all.map((one) => [one.textContent, one.getBBox().x + one.getBBox().width / 2])"
    ))  # fmt: skip
    drawn = page.locator("#curve-learning_rate .change path").evaluate("path => path.getBBox().x")
    assert drawn == pytest.approx((ticks["20"] + ticks["40"]) / 2, abs=1)
    assert page.locator(".change").count() == 1


def test_a_plan_is_marked_where_the_learning_rate_jumps(opens: Opens, tmp_path: Path) -> None:
    run = RunDir(seeds(tmp_path, "run", 1)[0])
    append_record(run.metrics, "plan", 10, max_steps=60)
    append_record(run.metrics, "plan", 30, max_steps=80, changes={"training.current_learning_rate": [0.001, 0.002]})
    write_report([run.path], run.report)
    page = opens(run.report)
    assert page.locator("#starts tr").count() == 2
    text = page.locator("#curve-learning_rate .change-text").inner_text()
    assert text.splitlines()[-1] == (
        "run,seed=1, step 30, new plan for max_minutes: training.current_learning_rate 0.001 → 0.002"
    )
    assert "resume" not in text
    assert page.locator("#starts h2").inner_text() == "Start"
    assert page.locator(".change").count() == 1


def test_each_chart_has_its_caption_above_and_a_unit_on_both_axes(made: RunDir, opens: Opens) -> None:
    page = opens(made.report)
    for curve in CURVES:
        figure = page.locator(f"#curve-{curve}")
        caption = figure.locator("figcaption").bounding_box()
        drawing = figure.locator("svg").bounding_box()
        assert caption is not None
        assert drawing is not None
        assert caption["y"] + caption["height"] <= drawing["y"]
        y_unit, x_unit = figure.locator("text.unit").all_text_contents()
        assert y_unit
        assert x_unit == ("minutes of training, without validation" if curve.endswith("-time") else "step")


def test_charts_over_time_are_in_minutes_of_the_log(opens: Opens, tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run", max_steps=60)
    for step, seconds in ((20, 6.0), (40, 3.0), (60, 9.0)):  # 2, 3 and 6 minutes in total
        append_record(run.metrics, "train", step, loss=3.0, seconds_per_step=seconds)
        append_record(run.metrics, "dev", step, loss=3.0 + step, bleu=step / 10)
    write_report([run.path], run.report)
    page = opens(run.report)
    chart = page.locator("#curve-bleu-time")
    xs = chart.locator("circle").evaluate_all("all => all.map((one) => Number(one.getAttribute('cx')))")
    ticks = dict(chart.locator("text[text-anchor=middle]").evaluate_all(
        "all => all.map((one) => [one.textContent, Number(one.getAttribute('x'))])"
    ))  # fmt: skip
    assert xs == pytest.approx([ticks["2"], ticks["3"], ticks["6"]], abs=0.2)


def test_tokenized_references_are_reported_beside_the_scores(made: RunDir, tmp_path: Path, opens: Opens) -> None:
    messages = {}
    for name, tokenizer in (("moses", "13a"), ("intended", "none")):
        run = RunDir(shutil.copytree(made.path, tmp_path / name))
        references = ["ein Hund läuft .", "die Katze schläft .", "zwei Männer spielen .", "eine Frau liest ."]
        evaluation = EvaluationConfig.model_validate({"bleu_tokenizer": tokenizer})
        found = score(references, references, evaluation)
        test = EvalSet("small", references, [references], "de", "en")
        result = ScoredTranslations(references, found, evaluation, seconds=1.0)
        write_card(run.evaluation("small"), test, result, Translator.load(run.path, device="cpu"))
        write_report([run.path], run.report)
        messages[name] = opens(run.report).locator("#scores .bad").all_inner_texts()
    warning = "the references look tokenized; their scores are not comparable to published ones; use the original text"
    assert messages == {"moses": [warning], "intended": []}


@pytest.mark.parametrize("width", [390, 1280])
def test_no_name_or_value_is_cut_or_shown_as_json(made: RunDir, opens: Opens, tmp_path: Path, width: int) -> None:
    runs = seeds(tmp_path, "a_long_name_of_settings.dropout=0.15", 1, 2)
    write_report([made.path, *runs], tmp_path / "report.html")
    page = opens(tmp_path / "report.html", viewport={"width": width, "height": 900})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cells = page.locator("th, td").all_inner_texts()
    assert len(cells) > 500
    assert [cell for cell in cells if re.search(r"\bnull\b|[][{}]|\"\w+\":", cell)] == []
    for name in [path.name for path in runs]:
        heads = page.locator("th[scope=row]", has_text=name)
        assert heads.count() == 2
        lines = heads.evaluate_all(LINES)
        assert {"".join(one) for one in lines} == {name}
        assert all(line[-1] in ",." for one in lines for line in one[:-1])


# ---- unfinished runs, and runs of other versions --------------------------------------------------------------------


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_the_report_of_a_run_that_has_just_started(opens: Opens, tmp_path: Path, has_tokenizer: bool) -> None:
    run = begin_run(tmp_path / "new")
    if not has_tokenizer:
        shutil.rmtree(run.tokenizer)
    write_report([run.path], run.report)
    page = opens(run.report)
    assert page.locator("header p").first.inner_text() == "not started. Nothing is logged yet."
    ids = page.locator("section").evaluate_all("all => all.map((one) => one.id)")
    assert ids == [*(["parameters"] if has_tokenizer else []), "config"]


def test_the_report_of_a_bundle(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    bundle = RunDir(tmp_path / "bundle")
    shutil.copytree(made.tokenizer, bundle.tokenizer)
    shutil.copyfile(made.config, bundle.config)
    shutil.copyfile(made.checkpoint(STEPS) / WEIGHTS, bundle.bundle_weights)
    write_checksums(bundle.path)
    write_report([bundle.path], bundle.report)
    page = opens(bundle.report)
    assert "bundle: weights" in page.locator("header").inner_text()
    assert page.locator(".unread").count() == 0


@pytest.mark.parametrize(("state", "message"), [
    ("running", "killed (can be resumed)"),  # no process holds the lock
    ("interrupted", "stopped by a signal (can be resumed)"),
    ("failed", f"failed: step {STEPS} of 900. a bad {IMAGE} gradient"),
])  # fmt: skip
def test_the_report_of_an_unfinished_run(opens: Opens, tmp_path: Path, state: str, message: str) -> None:
    run = begin_run(tmp_path / "run", max_steps=900)
    append_record(run.metrics, "train", STEPS, loss=3.0)
    set_state(run, state, f"a bad {IMAGE} gradient" if state == "failed" else None)
    write_report([run.path], run.report)
    page = opens(run.report)
    assert message in page.locator("header").inner_text()
    assert f"step {STEPS} of 900" in page.locator("header").inner_text()
    assert page.locator("figure").count() == 1


def test_a_config_of_a_newer_version_is_shown_as_text(made: RunDir, opens: Opens, tmp_path: Path) -> None:
    run = RunDir(shutil.copytree(made.path, tmp_path / "newer"))
    run.config.write_text(f"{run.config.read_text()}new_section:\n  key: '{IMAGE}'\n")
    write_report([run.path], run.report)
    page = opens(run.report)
    last_line = run.config.read_text().count("\n")
    assert f"config.yaml:{last_line}: not valid YAML" in page.locator(".unread").first.inner_text()
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
    assert "model.safetensors: truncated or changed" in unread
    assert "hypotheses.txt: changed since it was scored" in unread
    ids = page.locator("section").evaluate_all("all => all.map((one) => one.id)")
    assert ids == [name for name in SECTIONS if name not in ("attention", "sentences")]


@pytest.mark.parametrize("changes", [None, 3, "a", ["a"], {"training.seed": 3}, {"training.seed": [1]}])
def test_invalid_changes_of_a_resume_are_ignored(made: RunDir, tmp_path: Path, changes: Any) -> None:
    run = RunDir(shutil.copytree(made.path, tmp_path / "edited"))
    with run.metrics.open("a") as file:
        file.write(json.dumps({"kind": "resume", "step": STEPS, "time": 7, "changes": changes}) + "\n")
    write_report([run.path], run.report)
    assert resumes(RunContents(run.path))[-1] == (STEPS, "7", {})


def test_scores_that_cannot_be_compared_are_reported(made: RunDir, tmp_path: Path, opens: Opens) -> None:
    other = RunDir(shutil.copytree(made.path, tmp_path / "other"))
    keep_last_line(other.metrics)
    card: dict[str, Any] = json.loads((other.evaluation("small") / SCORES).read_text())
    card["text"]["references"] = ["0" * 64]
    (other.evaluation("small") / SCORES).write_text(json.dumps(card))
    write_report([made.path, other.path], tmp_path / "both.html")
    message = opens(tmp_path / "both.html").locator("#scores .bad").all_inner_texts()
    assert message == ["other cannot be compared with a <b>bold<b> run: different references"]


def test_the_report_names_the_weights_that_commands_use(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    weights = read_weights(run.checkpoint(STEPS) / WEIGHTS)
    save_checkpoint(run, Checkpoint(STEPS, weights, {}, {"bleu": 24.26}, {}))
    save_averaged(run, [STEPS], weights, {"bleu": 21.71})
    write_report([run.path], run.report)
    text = (
        "run: commands use the best checkpoint (step 60, dev bleu 24.26); the averaged weights (dev bleu 21.71) differ"
    )
    assert text in run.report.read_text()
