"""Fixtures for model tests."""

import pytest
import torch
from tiny import use_kernel


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    """Use one thread, because the models are too small to benefit from more."""
    torch.set_num_threads(1)


@pytest.fixture(params=["unfused", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each attention implementation."""
    use_kernel(request.param, monkeypatch)
    return request.param
