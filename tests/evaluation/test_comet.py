"""COMET through a stand-in of unbabel-comet; its real names were checked against version 2.2.7."""

import os
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
    """Gives the share of the reference's words that are there."""

    calls: list[dict[str, Any]]

    def __init__(self) -> None:
        self.calls = []

    def predict(self, samples: list[dict[str, str]], **options: Any) -> Any:
        self.calls.append(options)
        pairs = [(one["mt"].split(), one["ref"].split()) for one in samples]
        scores = [sum(word in mt for word in ref) / len(ref) for mt, ref in pairs]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


class Package:
    """What is used of the module `comet`."""

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
    monkeypatch.setitem(sys.modules, "comet", package)  # type: ignore[arg-type]  # it replaces a module
    return package


def test_a_model_by_its_name_and_by_its_path(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEIGHTS_ONLY, "0")
    by_name, by_path = Comet("Unbabel/known", "cpu"), Comet(str(package.downloaded), "cpu")
    assert os.environ[WEIGHTS_ONLY] == "0"  # as before
    assert by_name.signature.startswith("model:known|sha256:")
    assert by_name.signature.endswith("|version:2.2.7")
    assert by_path.signature == by_name.signature.replace("known", "hub")
    score = by_name.score(["a"] * 30, REFERENCES, REFERENCES)
    assert (score.name, score.label, score.value, score.signature) == ("comet", "COMET", 1.0, by_name.signature)
    assert package.model.calls == [{"batch_size": 16, "gpus": 0, "accelerator": "cpu", "progress_bar": False}]


def test_it_is_compared_with_significance(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert table.systems[1].tests.p_randomisation < 0.01


class Evil:
    """Runs a command where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_holds_code_is_refused(package: Package, tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "more": Evil(tmp_path / "ran")}, package.downloaded)
    with pytest.raises(DataError, match="not loaded, because it holds more than weights and plain values") as caught:
        Comet("Unbabel/known", "cpu")
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, pickle.UnpicklingError)
    assert WEIGHTS_ONLY not in os.environ
    package.load_from_checkpoint(str(package.downloaded))
    assert (tmp_path / "ran").exists(), "the check itself: without it, the code does run"


def test_a_model_that_cannot_be_had_is_one_clear_line(package: Package, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"--comet Unbabel/other: cannot download this model \(Model 'Unbabel/other' not"
    ):
        Comet("Unbabel/other", "cpu")
    with pytest.raises(DataError, match=r"gone\.ckpt: no such file"):
        Comet(str(tmp_path / "gone.ckpt"), "cpu")
    with pytest.raises(DataError, match=r"no such file; give the model's checkpoints/model\.ckpt"):
        Comet(str(tmp_path), "cpu")
    package.downloaded.write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"not loaded|COMET cannot load it") as caught:
        Comet("Unbabel/known", "cpu")
    assert "\n" not in str(caught.value)


def test_without_the_package_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr("mtformer.evaluation.comet.importlib.import_module", missing)
    module = "comet"
    with pytest.raises(ConfigError, match=r"--comet needs another package: pip install 'mtformer\[comet\]'"):
        Comet("Unbabel/known", "cpu")
    module = "pkg_resources"
    with pytest.raises(ConfigError, match="installed but cannot be imported: No module named 'pkg_resources'"):
        Comet("Unbabel/known", "cpu")
