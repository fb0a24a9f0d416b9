"""Models and tokenizers loaded by `transformers`, for comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


class Peer(NamedTuple):
    """A model and its tokenizer as loaded by `transformers`."""

    model: Any
    tokenizer: Any

    def translate(self, lines: Sequence[str], **settings: Any) -> list[tuple[str, float]]:
        """Return the text and score (0 if greedy) of each translation; generation_config.json has the defaults."""
        generated = self.model.generate(
            **self.tokenizer(list(lines), return_tensors="pt", padding=True),
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        texts = self.tokenizer.batch_decode(generated.sequences, skip_special_tokens=True)
        scores = generated.sequences_scores.tolist() if "sequences_scores" in generated else [0.0] * len(texts)
        return list(zip(texts, scores, strict=True))

    def logits(self, src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        """Return the logits (B, T, V) for ids padded with the pad id of the model."""
        keep_BS = (src_BS != self.model.config.pad_token_id).long()
        with torch.no_grad():
            return self.model(input_ids=src_BS, attention_mask=keep_BS, decoder_input_ids=tgt_BT).logits


def load_peer(folder: Path) -> Peer:
    """Load a folder, and check that no tensors are missing or unexpected."""
    model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return Peer(model.eval(), AutoTokenizer.from_pretrained(folder))
