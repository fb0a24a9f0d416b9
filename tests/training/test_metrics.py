"""TensorBoard as an extra: its writer gets every figure; without it the user is told what to install."""

import builtins
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mtformer.errors import MtformerError
from mtformer.training.metrics import MetricsFile


def test_figures_go_to_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "tensorboard")

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            written.append((tag, scalar_value, global_step))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    metrics = MetricsFile(tmp_path / "metrics.jsonl", tensorboard=True)
    metrics.write("dev", 7, bleu=30.5, note="text")
    assert written == [("dev/bleu", 30.5, 7)]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "dev", "step": 7, "bleu": 30.5, "note": "text"}\n'


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MtformerError, match=r"pip install 'mtformer\[tensorboard\]'"):
        MetricsFile(tmp_path / "metrics.jsonl", tensorboard=True)
