"""What the tests of the model share."""

import pytest
import torch

from mtformer.model import attention


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    """At these sizes a second thread only waits, and on a busy machine for long."""
    torch.set_num_threads(1)


@pytest.fixture(params=["written", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test once with each form of attention inside MultiHeadAttention."""
    monkeypatch.setattr(attention, "use_fused", lambda q_BHTK, S, dropout_p: request.param == "fused")
    return request.param
