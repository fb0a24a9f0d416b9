"""A run directory containing a tiny tokenizer and a tiny model with random weights."""

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from toy import random_lines

from mtformer.config.loading import dump_config
from mtformer.config.schema import Config
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir

CONFIG = {
    "data": {"src_lang": "en", "tgt_lang": "de", "filters": {"max_tokens": 50}},
    "tokenizer": {"vocab_size": 120},
    "model": {
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_positions": 64,
    },
    "decoding": {"beam_size": 3, "beam_tokens": 512},
}


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    torch.set_num_threads(1)  # these models are too small for more threads


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a bundle with a trained tokenizer and random weights."""
    run = RunDir(tmp_path_factory.mktemp("bundle"))
    run.tokenizer.mkdir()
    config = Config.model_validate(CONFIG)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(random_lines(300, seed=0)),
        model_prefix=str(run.tokenizer / "joint"),
        vocab_size=config.tokenizer.vocab_size,
        hard_vocab_limit=False,
        **{f"{name}_id": number for number, name in enumerate(("pad", "unk", "bos", "eos"))},
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(run.tokenizer / "joint.model")).get_piece_size()
    run.config.write_text(dump_config(config), encoding="utf-8")
    torch.manual_seed(5)
    model = Transformer(config.model, pieces, pieces)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(2.0)  # sharper distributions than at initialization, so translations differ in length
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, run.bundle_weights)
    write_checksums(run.path)
    return run
