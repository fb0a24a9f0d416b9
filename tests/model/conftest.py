"""Fixtures of the tests of the model."""

import pytest
import torch
from tiny import use_kernel


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    """At these sizes a second thread only waits, and on a busy machine for long."""
    torch.set_num_threads(1)


@pytest.fixture(params=["written", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with each form of attention."""
    use_kernel(request.param, monkeypatch)
    return request.param
