"""Tiny tokenizers, configs, models and bundles shared by the tests in this folder."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
from safetensors.torch import save_file

from mtformer.config.loading import dump_config
from mtformer.config.schema import Config
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

WORDS = [
    *("ein", "eine", "der", "die", "das", "hund", "katze", "park", "frau", "mann", "buch", "liest", "läuft", "schläft"),
    *("und", "im", "auf", "neben", "rot", "blau", "gross"),
]
SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 48, "num_encoder_layers": 1, "num_decoder_layers": 3}
Make = Callable[..., tuple[Transformer, TokenizerPair]]


def random_lines(count: int, seed: int) -> list[str]:
    """Return lines of one to nine German words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


def config_of(**model: Any) -> Config:
    """Return a config with these model options; vocabularies are separate unless all embeddings are tied."""
    return Config.model_validate(
        {
            "data": {"src_lang": "de", "tgt_lang": "de", "train": [{"tsv": "/somewhere/secret.tsv"}],
                     "filters": {"max_tokens": 50}},
            "training": {"init_from": "/somewhere/secret"},
            "tokenizer": {"joint": model.get("tie_embeddings", "all") == "all"},
            "model": {**SIZES, "max_positions": 64, **model},
        }
    )  # fmt: skip


def train_tokenizer(folder: Path, name: str, vocab_size: int, **settings: Any) -> Tokenizer:
    """Train a SentencePiece model on random lines."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(random_lines(300, seed=0)),
        model_prefix=str(folder / name),
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        **{f"{special}_id": number for number, special in enumerate(("pad", "unk", "bos", "eos"))},
        minloglevel=2,
        **settings,
    )
    return Tokenizer.load(folder / f"{name}.model")


def write_bundle(folder: Path, model: Transformer, tokenizers: TokenizerPair) -> RunDir:
    """Write a bundle like `mtformer export --format bundle`, except that its config contains the name of a corpus."""
    run = RunDir(folder)
    folder.mkdir()
    tokenizers.save(run.tokenizer)
    run.config.write_text(dump_config(config_of(**model.config.model_dump())), encoding="utf-8")
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, run.bundle_weights)
    write_checksums(folder)
    return run
