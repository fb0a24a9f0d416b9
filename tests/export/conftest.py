"""Tokenizers, and tiny models trained for a second, shared by all tests of exports."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Make, config_of, random_lines, train_tokenizer, write_bundle
from torch import nn

from mtformer.decoding.search.inference import pad
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

STEPS = 90


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    torch.set_num_threads(1)  # these models are too small for more threads


@pytest.fixture(scope="session")
def joint(tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    tokenizer = train_tokenizer(tmp_path_factory.mktemp("joint"), "joint", 90)
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def separate(joint: TokenizerPair, tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    return TokenizerPair(joint.src, train_tokenizer(tmp_path_factory.mktemp("separate"), "tgt", 60, model_type="bpe"))


@pytest.fixture(scope="session")
def make_random(joint: TokenizerPair, separate: TokenizerPair) -> Make:
    """Return a function that makes models with random weights, biases and norms, and sharp distributions."""

    def make(**options: Any) -> tuple[Transformer, TokenizerPair]:
        config = config_of(**options)
        tokenizers = joint if config.tokenizer.joint else separate
        torch.manual_seed(1)
        model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
        return model, tokenizers

    return make


@pytest.fixture(scope="session")
def make_trained(make_random: Make) -> Make:
    """Return a function that makes models that have begun to learn to copy.

    Their translations end by themselves, at different lengths, and never contain pad or bos, which backends exclude in
    different ways.
    """

    @cache
    def make(**options: Any) -> tuple[Transformer, TokenizerPair]:
        model, tokenizers = make_random(**options)
        lines = sorted(random_lines(256, seed=5), key=len)
        sources = [[*ids, EOS] for ids in tokenizers.src.encode(lines)]
        targets = [[BOS, *ids, EOS] for ids in tokenizers.tgt.encode(lines)]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        rng = random.Random(0)
        for _ in range(STEPS):
            start = rng.randrange(len(lines) - 32)
            src_BS, src_lengths_B = pad(sources[start : start + 32], torch.device("cpu"))
            tgt_BT, _ = pad(targets[start : start + 32], torch.device("cpu"))
            log_prob_BTV = model.project(model(src_BS, src_lengths_B, tgt_BT[:, :-1])).log_softmax(-1)
            loss = nn.functional.nll_loss(log_prob_BTV.flatten(0, 1), tgt_BT[:, 1:].flatten(), ignore_index=PAD)
            never = (log_prob_BTV[..., [PAD, BOS]] + 25.0).clamp(min=0.0).mean()
            optimizer.zero_grad()
            (loss + 0.05 * never).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model, tokenizers

    return make


@pytest.fixture
def bundle(make_trained: Make, tmp_path: Path) -> RunDir:
    """Return a bundle of a trained model with the default options."""
    return write_bundle(tmp_path / "run", *make_trained())
