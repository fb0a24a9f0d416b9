"""Tests of sweep files: they define named runs with valid configs, or raise a one-line error with file and line."""

import shlex
from pathlib import Path

import pytest

from mtformer.config.loading import load_config
from mtformer.errors import ConfigError
from mtformer.experiment.sweep import (
    LONGEST_NAME,
    Sweep,
    SweepFile,
    _overrides,
    plan_sweep,
    short_keys,
)

BASE = "data: {src_lang: en, tgt_lang: de, train: [{src: a.en, tgt: a.de}]}\nmodel: {d_model: 64, num_heads: 4}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def plan(folder: Path, text: str, *overrides: str) -> Sweep:
    (folder / "study.yaml").write_text(f"config: base.yaml\n{text}\n")
    return plan_sweep(folder / "study.yaml", overrides)


def names(folder: Path, text: str) -> list[str]:
    return [run.name for run in plan(folder, text).runs]


def error_of(folder: Path, text: str, *overrides: str) -> str:
    """Return the error message for an invalid sweep, without the name of the folder."""
    with pytest.raises(ConfigError) as found:
        plan(folder, text, *overrides)
    assert "\n" not in str(found.value)
    return str(found.value).replace(f"{folder}/", "")


def test_runs_are_the_product_of_all_axes(folder: Path) -> None:
    variants = "list: [{name: small, model.d_ff: 128, model.num_decoder_layers: 1}, {name: base}]"
    text = f"{variants}\ngrid: {{model.norm_position: [pre, post]}}\nseeds: [1, 10]"
    assert names(folder, text) == [
        f"{size},norm_position={norm},seed={seed}"
        for size in ("small", "base")
        for norm in ("pre", "post")
        for seed in (1, 10)
    ]


def test_each_run_has_the_config_that_its_overrides_give(folder: Path) -> None:
    text = "set: {training.max_steps: 5, model.d_ff: 7}\ngrid: {model.dropout: [0.2, 0.3]}\nseeds: [4]"
    sweep = plan(folder, text, "model.d_ff=99")
    assert sweep.common == ("training.max_steps=5", "model.d_ff=7", "model.d_ff=99")
    for run, dropout in zip(sweep.runs, (0.2, 0.3), strict=True):
        config = run.config
        assert (config.model.dropout, config.model.d_ff, config.training.max_steps) == (dropout, 99, 5)
        assert config.training.seed == 4
        assert run.values == {"model.dropout": dropout, "training.seed": 4}
        assert load_config(sweep.config, run.overrides).config == config


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["model.dropout", "training.seed"], ["dropout", "seed"]),
        (["decoding.seed", "training.seed"], ["decoding.seed", "training.seed"]),
        (["data.train.0.src", "data.dev.0.src"], ["train.0.src", "dev.0.src"]),
        (["seed", "training.seed"], ["seed", "training.seed"]),
    ],
)
def test_short_keys_are_unique(keys: list[str], short: list[str]) -> None:
    assert list(short_keys(keys).values()) == short


def test_names_are_valid_file_names_of_limited_length(folder: Path) -> None:
    text = "grid: {training.init_from: [../runs/a b, /x/ö], training.betas: [[0.9, 0.98]], model.num_kv_heads: [null]}"
    assert names(folder, text) == [
        "init_from=runs-a-b,betas=0.9-0.98,num_kv_heads=null",
        "init_from=x,betas=0.9-0.98,num_kv_heads=null",
    ]
    long = ", ".join("x" * 90 + end for end in "ab")
    found = names(folder, f"grid: {{training.init_from: [{long}], data.cache_dir: [{'y' * 90}]}}")
    assert len(set(found)) == 2
    assert {len(name) for name in found} == {LONGEST_NAME}


def test_run_directories(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert plan(folder, "seeds: [1]").runs[0].run.path == Path("runs/study/seed=1")
    assert plan(folder, "run_dir: other\nseeds: [1]").runs[0].run.path == Path("other/seed=1")


@pytest.mark.parametrize(
    "value", ["post", "a b", "a: b", "# c", "'", '"', "no", "1e-4", "", " x", "ä€😀", "- a", "null"]
)
def test_text_in_an_override_remains_text(folder: Path, value: str) -> None:
    (run,) = plan(folder, "seeds: [1]", *_overrides({"training.init_from": value})).runs
    assert run.config.training.init_from == value


def test_the_command_line_is_quoted_for_the_shell(folder: Path) -> None:
    sweep = plan(folder, "run_dir: my runs\nset: {data.train: [{src: 'b c.en', tgt: b.de}]}\nseeds: [1]")
    words = shlex.split(sweep.command_line(sweep.runs[0]))
    assert words[:7] == [
        "mtformer",
        "train",
        str(folder / "base.yaml"),
        "--run-dir",
        "my runs/seed=1",
        "--resume",
        "auto",
    ]
    assert load_config(folder / "base.yaml", words[7:]).config == sweep.runs[0].config


# User errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gird: {}", "study.yaml:2: gird: unknown key; did you mean 'grid'? allowed: config, run_dir, set, grid, list"),
        ("grid: {model.dropout: 0.1}", "study.yaml:2: grid.model.dropout: must be a list, not 0.1"),
        ("grid: {model.dropout: []}", "study.yaml:2: grid.model.dropout: must have at least one item"),
        ("grid: {model: {dropout: [0.1]}}", "study.yaml:2: grid: write dotted keys, such as model.dropout"),
        ("seeds: [one]", "study.yaml:2: seeds.0: must be a whole number of at least 0, not 'one'"),
        (
            "seeds: [1, 1]",
            "study.yaml: seeds: duplicate run name seed=1; leave one out, or give the runs names as variants under "
            "list",
        ),
        ("list: [{model.dropout: 0.1}]", "study.yaml:2: list: variant 1 of list needs a name"),
        ("list: [{name: a/b}]", "study.yaml:2: list: variant 1 of list needs a name"),
        ("list: [{name: a}, {name: a.log}]", "study.yaml:2: list: variant 2 of list needs a name"),
        ("list:\n- {name: a}\n- {name: A}", "study.yaml: list: duplicate run name a"),
        ("run_dir: x", "study.yaml: has no axis; add grid, list or seeds"),
        ("seeds: []", "study.yaml: has no axis"),
        ("grid: {training.seed: [1]}\nseeds: [2]", "study.yaml: seeds: training.seed is also set by grid"),
        ("set: {training.seed: 1}\nseeds: [2]", "study.yaml: seeds: training.seed is also set by set"),
        ("set: {training: {seed: 1}}\nseeds: [2]", "study.yaml: seeds: training.seed is also set by set"),
        (
            "grid: {data.train.0.src: [a, b]}\nlist: [{name: a, data.train: [{src: c, tgt: d}]}]",
            "study.yaml: grid: data.train.0.src is also set by data.train in list; remove one of them",
        ),
        ("grid: {data.train: [[{src: a, tgt: b}]]}", "study.yaml: grid: train: a nested value needs a name; make it"),
        ("seeds: [1", "study.yaml:3: not valid YAML"),
        (
            "set: {model.dropuot: 1}\nseeds: [1]",
            "study.yaml: run seed=1: override 'model.dropuot=1': model.dropuot: unknown key; did you mean",
        ),
        (
            "grid: {model.norm_position: [pre, pst]}\nseeds: [7]",
            "study.yaml: run norm_position=pst,seed=7: override 'model.norm_position=pst': model.norm_position: must "
            "be one of pre, post, not 'pst'; did you mean 'post'?",
        ),
        (
            "list: [{name: fits, model.num_heads: 2}, {name: odd, model.num_heads: 3}]",
            "study.yaml: run odd: override 'model.num_heads=3': model.num_heads: num_heads 3 does not divide d_model",
        ),
    ],
)  # fmt: skip
def test_errors_in_a_sweep_file(folder: Path, text: str, message: str) -> None:
    assert error_of(folder, text).startswith(message)


def test_an_override_of_an_axis_is_rejected(folder: Path) -> None:
    assert error_of(folder, "seeds: [1]", "training.seed=2") == (
        "study.yaml: override 'training.seed=2': training.seed is an axis of the sweep (seeds); remove one of them"
    )
    for override in ("training={seed: 2}", "data.train.0.src=a", "data.train.0={src: a, tgt: b}"):
        found = error_of(folder, "list: [{name: a, data.train: [{src: a, tgt: b}]}]\nseeds: [1]", override)
        key, axis = ("data.train", "list") if "data" in override else ("training.seed", "seeds")
        assert found.startswith(f"study.yaml: override '{override}': {key} is an axis of the sweep ({axis}); remove")


def test_files_that_are_not_sweeps(folder: Path) -> None:
    for name, content, message in (
        (
            "list.yaml",
            b"- a\n",
            "a sweep must be a mapping with the keys config, run_dir, set, grid, list, seeds, not ",
        ),
        ("empty.yaml", b"", "a sweep must be a mapping with the keys "),
        ("lost.yaml", b"config: lost_base.yaml\nseeds: [1]\n", "no such file: "),
    ):
        path = folder / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as found:
            plan_sweep(path)
        assert str(found.value).startswith(str(path))


def test_errors_in_the_base_config_name_its_file_and_line(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE + "modle: {}\n")
    assert error_of(folder, "seeds: [1]").startswith("study.yaml: run seed=1: base.yaml:3: modle: unknown key; did")


def test_the_example_in_the_module_docstring_is_valid(folder: Path) -> None:
    import mtformer.experiment.sweep as module

    example = (module.__doc__ or "").split("\n\n")[1]
    (folder / "example.yaml").write_text(example)
    runs = plan_sweep(folder / "example.yaml").runs
    assert len(runs) == 2 * 2 * 3
    assert set(SweepFile.model_fields) == {"config", "run_dir", "common", "grid", "variants", "seeds"}


def test_a_shipped_sweep_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = plan_sweep(Path("configs/studies/norm.yaml"))
    assert len(sweep.runs) == 12
    assert sweep.folder == Path("runs/studies/norm")
    assert sweep.config.is_file()
