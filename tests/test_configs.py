"""Every shipped config trains two steps on a small corpus and computes test scores; every sweep expands to its runs."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtformer.cli.app import app
from mtformer.config.data import FilterConfig, HubDataset
from mtformer.config.loading import config_diff, load_config
from mtformer.data.demo import write_demo
from mtformer.data.filters.filters import Filter
from mtformer.experiment.sweep import plan_sweep
from mtformer.run_dir import RunDir

FOLDER = Path(__file__).resolve().parent.parent / "configs"
STUDIES = FOLDER / "studies"
BASE_OF_STUDIES = STUDIES / "base.yaml"
CONFIGS = [*sorted(FOLDER.glob("*.yaml")), BASE_OF_STUDIES]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides that replace the public corpus with a local one."""
    folder = tmp_path_factory.mktemp("corpus")
    for path in write_demo(folder).values():
        lines = path.read_text(encoding="utf-8").splitlines()[: 300 if path.name.startswith("train") else 20]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    overrides = [f"data.{key}=[{{src: {folder}/{name}.en, tgt: {folder}/{name}.de}}]" for key, name in
                 (("train", "train"), ("dev", "dev"))]  # fmt: skip
    return [*overrides, "data.test={}", f"data.test={{test: {{src: {folder}/test.en, tgt: {folder}/test.de}}}}"]


def test_there_are_configs() -> None:
    assert {path.stem for path in CONFIGS} >= {
        "demo", "multi30k_en_de", "multi30k_en_de_tiny", "iwslt14_de_en", "kftt_ja_en", "wmt14_en_de_base",
        "wmt14_en_de_big",
    }  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_each_config_trains_for_two_steps(config: Path, sources: list[str], tmp_path: Path) -> None:
    overrides = [
        *sources,
        "data.src_lang=en",
        "data.tgt_lang=de",
        "tokenizer.vocab_size=500",
        # Widths are those of the config; a single encoder and decoder layer makes large models fast.
        "model.num_encoder_layers=1",
        "model.num_decoder_layers=1",
        "training.device=cpu",
        "training.batch_tokens=256",
        "training.precision=fp32",
        "training.accumulation_steps=1",
        "training.step_tokens=null",
        "training.max_steps=2",
        "training.validate_every=2",
        "decoding.max_length_ratio=0.1",
    ]
    result = CliRunner().invoke(app, ["train", str(config), *overrides, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.stderr
    assert RunDir(tmp_path / "run").steps() == [2]
    assert "BLEU" in result.stdout


@pytest.mark.parametrize("name", ["iwslt14_de_en", "kftt_ja_en", "wmt14_en_de_base", "wmt14_en_de_big"])
def test_untrained_configs_say_that_they_are_untrained(name: str) -> None:
    header = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").partition("\n\n")[0].partition("data:")[0]
    assert "This configuration has not been trained yet" in header.replace("\n# ", " ")


@pytest.mark.parametrize("name", ["iwslt14_de_en", "wmt14_en_de_base", "wmt14_en_de_big"])
def test_configs_of_published_protocols_filter_by_length_only(name: str) -> None:
    """Tokenized corpora contain entities, which count as markup, and other pairs that the default filters remove."""
    pairs = [
        ("&quot; ja &quot;", "&quot; yes &quot;"),
        ("okay .", "okay ."),
        ("um 20 uhr 15", "at a quarter past eight"),
        ("ja " * 9, "yes " * 9),
        ("the end of the show", "das ende der show"),
    ]
    config = load_config(FOLDER / f"{name}.yaml").config.data
    texts = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    assert all(Filter(FilterConfig(), "de", "en").by_text(texts))
    assert not any(Filter(config.filters, "de", "en").by_text(texts))
    assert not config.filters.drop_duplicates


def test_iwslt14_uses_tokenized_bleu_and_a_fixed_revision() -> None:
    config = load_config(FOLDER / "iwslt14_de_en.yaml").config
    assert config.evaluation.bleu_tokenizer == "none"
    sources = [*config.data.train, *config.data.dev, *config.data.test.values()]
    assert all(isinstance(one, HubDataset) and re.fullmatch("[0-9a-f]{40}", one.revision or "") for one in sources)


STUDIES_WITH_THREE_SEEDS = [("positions", 3), ("norm", 4), ("vocabulary", 4), ("averaging", 4), ("optimizer", 4)]


@pytest.mark.parametrize(("name", "num_values"), STUDIES_WITH_THREE_SEEDS)
def test_studies_vary_few_settings_with_three_seeds(name: str, num_values: int, sources: list[str]) -> None:
    sweep = plan_sweep(STUDIES / f"{name}.yaml", sources)
    assert sweep.config == BASE_OF_STUDIES
    assert sweep.folder == Path("runs/studies", name)
    base = load_config(BASE_OF_STUDIES, sources).config
    differences = [config_diff(base, run.config) for run in sweep.runs]
    assert sorted(run.config.training.seed for run in sweep.runs) == sorted([1, 2, 3] * num_values)
    assert name == "averaging" or [] in differences  # one of the compared settings is that of the base config
    assert len({str(one) for one in differences}) == 3 * num_values


def test_the_regularization_study_screens_each_option(sources: list[str]) -> None:
    sweep = plan_sweep(STUDIES / "regularization.yaml", sources)
    runs = {run.name.partition(",")[0]: run.config for run in sweep.runs}
    changed = {name: {key for key, *_ in config_diff(runs["baseline"], config)} for name, config in runs.items()}
    steps = {name: config.training.max_steps for name, config in runs.items()}
    assert changed.pop("baseline") == set()
    assert changed.pop("dropout_0.2") == changed.pop("dropout_0.4") == {"model.dropout"}
    assert {name for name in runs if steps[name] != steps["baseline"]} == {"rdrop", "simcut"}
    for name in ("rdrop", "simcut"):
        assert changed.pop(name) == {f"training.{key}" for key in ("consistency", "consistency_weight", "max_steps")}
    noise = {f"data.noise.{kind}" for kind in ("case", "final_stop", "typos", "copies")}
    options = {"training.token_dropout", "model.layer_drop"}
    assert set().union(*changed.values()) == noise | options


def test_the_best_options_and_their_combination_have_three_seeds(sources: list[str]) -> None:
    screened = {run.name: run.config for run in plan_sweep(STUDIES / "regularization.yaml", sources).runs}
    for seed in (1, 2, 3):
        runs = plan_sweep(STUDIES / "regularization_seeds.yaml", sources).runs
        found = {run.name.partition(",")[0]: run.config for run in runs if run.config.training.seed == seed}
        changed = {name: {key for key, *_ in config_diff(found["baseline"], config)} for name, config in found.items()}
        assert changed["dropout_0.2_noise"] == changed["dropout_0.2"] | changed["noise"]
        same = [config_diff(screened[f"{name},seed=1"], found[name]) for name in ("baseline", "dropout_0.2", "noise")]
        assert same == [[("training.seed", 1, seed)] if seed != 1 else []] * 3


def test_all_studies_are_tested() -> None:
    names = {"base", "positions", "norm", "vocabulary", "averaging", "optimizer", "regularization"}
    names |= {"regularization_seeds"}
    assert {path.stem for path in STUDIES.iterdir()} == names
