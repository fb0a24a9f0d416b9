"""Compare decoding with and without a cache on CUDA."""

from typing import Any

import pytest
import torch
from tiny import D, sources, step, tiny_model, tokens

from mtformer.model.cache import EncoderOutput

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
R, T = 3, 23
LENGTHS = [7, 2, 31, 4]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Maximum norm of the difference, relative to the norm."""


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "rotary", "num_kv_heads": 2}, {"norm_position": "post", "positions": "learned"}],
    ids=["default", "rotary, grouped heads", "post-norm, learned positions"],
)
@torch.inference_mode()
def test_cached_decoding_equals_uncached(changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Also compare both with float64, because both could have the same error."""
    exact = tiny_model(**changes).eval()
    model = tiny_model(**changes).eval().to(DEVICE, dtype)
    src_BS, lengths_B = sources(LENGTHS)
    tgt_NT = tokens(len(LENGTHS) * R, T, seed=1)

    def for_rows(encoder_output: EncoderOutput) -> EncoderOutput:
        return EncoderOutput(*(x.repeat_interleave(R, dim=0) for x in encoder_output))

    expected_NTD = exact.decode(tgt_NT, for_rows(exact.encode(src_BS, lengths_B)))
    encoder_output = model.encode(src_BS.to(DEVICE), lengths_B.to(DEVICE))
    whole_NTD = model.decode(tgt_NT.to(DEVICE), for_rows(encoder_output))
    cache = model.new_cache(encoder_output, R, T)
    steps_NTD = torch.stack([step(model, tgt_NT[:, t].to(DEVICE), cache) for t in range(T)], dim=1)
    assert steps_NTD.shape == (len(LENGTHS) * R, T, D)
    for hidden_NTD in (whole_NTD, steps_NTD):
        difference = hidden_NTD.double().cpu() - expected_NTD
        assert difference.norm() <= TOLERANCE[dtype] * expected_NTD.norm()
