"""Tests of COMET with a fake unbabel-comet package; its interface was compared to that of version 2.2.7."""

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scored import corpus, corrupt

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation import significance
from mtformer.evaluation.comet import WEIGHTS_ONLY, Comet
from mtformer.evaluation.compare import compare
from mtformer.evaluation.systems import Material, Run, System

REFERENCES = corpus(30)


class Model:
    """Fake COMET model; the score is the share of the reference's words that occur in the translation."""

    calls: list[dict[str, Any]]

    def __init__(self) -> None:
        self.calls = []

    def predict(self, samples: list[dict[str, str]], **options: Any) -> Any:
        self.calls.append(options)
        pairs = [(one["mt"].split(), one["ref"].split()) for one in samples]
        scores = [sum(word in mt for word in ref) / len(ref) for mt, ref in pairs]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


class Package:
    """Fake `comet` module with only the parts that are used."""

    __version__ = "2.2.7"

    def __init__(self, folder: Path) -> None:
        self.model = Model()
        self.downloaded = folder / "hub" / "checkpoints" / "model.ckpt"
        self.downloaded.parent.mkdir(parents=True)
        torch.save({"state_dict": {"weight": torch.ones(2)}}, self.downloaded)

    def download_model(self, model: str) -> str:
        if model != "Unbabel/known":
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return str(self.downloaded)

    def load_from_checkpoint(self, path: str) -> Model:
        torch.load(path, weights_only=False)  # as old versions of Lightning do
        return self.model


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    package = Package(tmp_path)
    monkeypatch.setenv(WEIGHTS_ONLY, "0")
    monkeypatch.setitem(sys.modules, "comet", package)  # type: ignore[arg-type]  # it replaces a module
    return package


def test_comet_model_by_name_and_by_path(package: Package) -> None:
    by_name, by_path = Comet("Unbabel/known", "cpu"), Comet(str(package.downloaded), "cpu")
    assert by_name.signature.startswith("model:known|sha256:")
    assert by_name.signature.endswith("|version:2.2.7")
    assert by_path.signature == by_name.signature.replace("known", "hub")
    score = by_name.score(["a"] * 30, REFERENCES, REFERENCES)
    assert (score.name, score.label, score.value, score.signature) == ("comet", "COMET", 1.0, by_name.signature)
    assert package.model.calls == [{"batch_size": 16, "gpus": 0, "accelerator": "cpu", "progress_bar": False}]


def test_comet_is_included_in_comparisons(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "NUM_RESAMPLES", 100)
    monkeypatch.setattr(significance, "NUM_TRIALS", 200)
    good, bad = corrupt(REFERENCES, 0.1, 1), corrupt(REFERENCES, 0.6, 2)
    outputs = {Path("good"): good, Path("bad"): bad}
    material = Material("made", REFERENCES, [REFERENCES], EvaluationConfig(), outputs, [], [])
    systems = [System(path.name, [Run(path.name, path)]) for path in outputs]
    table = compare(systems, material, comet=Comet("Unbabel/known", "cpu")).metrics[-1]
    assert (table.name, table.label) == ("comet", "COMET")
    expected = [Model().predict([{"mt": m, "ref": r} for m, r in zip(o, REFERENCES, strict=True)]) for o in (good, bad)]
    assert [row.mean for row in table.systems] == pytest.approx([one.system_score for one in expected])
    assert table.systems[1].tests is not None
    assert table.systems[1].tests.p_randomization < 0.01


class Evil:
    """Object that executes code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_contains_code_is_rejected(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"state_dict": {}, "more": Evil(tmp_path / "ran")}, package.downloaded)
    with pytest.raises(DataError, match="rejected, because it contains more than weights and plain values") as caught:
        Comet("Unbabel/known", "cpu")
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, pickle.UnpicklingError)
    monkeypatch.setenv(WEIGHTS_ONLY, "0")
    package.load_from_checkpoint(str(package.downloaded))
    assert (tmp_path / "ran").exists(), "without the protection, the code is executed"


def test_unavailable_models_raise_one_line_errors(package: Package, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--comet Unbabel/other: cannot be downloaded \(Model 'Unbabel/other' not"):
        Comet("Unbabel/other", "cpu")
    with pytest.raises(DataError, match=r"gone\.ckpt: no such file"):
        Comet(str(tmp_path / "gone.ckpt"), "cpu")
    with pytest.raises(DataError, match=r"no such file; give the model's checkpoints/model\.ckpt"):
        Comet(str(tmp_path), "cpu")
    package.downloaded.write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"rejected|COMET cannot load this file") as caught:
        Comet("Unbabel/known", "cpu")
    assert "\n" not in str(caught.value)


def test_a_missing_package_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr("mtformer.evaluation.comet.importlib.import_module", missing)
    module = "comet"
    with pytest.raises(ConfigError, match=r"--comet requires another package: pip install 'mtformer\[comet\]'"):
        Comet("Unbabel/known", "cpu")
    module = "pkg_resources"
    with pytest.raises(ConfigError, match="installed but cannot be imported: No module named 'pkg_resources'"):
        Comet("Unbabel/known", "cpu")
