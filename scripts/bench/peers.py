"""Models, sizes and text shared by the speed benchmarks: mtformer's Transformer, and peers of the same shape.

B sentences, S source length, T target length, D model width, V vocabulary.
"""

import argparse
import gzip
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sentencepiece
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtformer.config.schema import ModelConfig
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer

if TYPE_CHECKING:
    from transformers import MarianMTModel

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # mtformer's ids, used by all systems
VOCAB_SIZE = 8000
MAX_POSITIONS = 1024
DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"


@dataclass(frozen=True)
class Size:
    """Size of a model."""

    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int  # in the encoder and in the decoder
    vocab_size: int = VOCAB_SIZE  # of a joint, tied vocabulary

    def __str__(self) -> str:
        layers = f"{self.num_layers}+{self.num_layers} layers"
        return f"d {self.d_model}, ff {self.d_ff}, {self.num_heads} heads, {layers}"


SIZES = {"toy": Size(16, 32, 2, 1), "tiny": Size(128, 256, 4, 4), "small": Size(256, 1024, 4, 3)}
"""Model sizes; `toy` is for trying the scripts."""


def model_config(size: Size, dropout: float) -> ModelConfig:
    """Return the `model` section of mtformer's config for this size."""
    return ModelConfig(
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        num_encoder_layers=size.num_layers,
        num_decoder_layers=size.num_layers,
        dropout=dropout,
        max_positions=MAX_POSITIONS,
    )


def transformer(size: Size, dropout: float, compute_dtype: torch.dtype | None = None) -> Transformer:
    """Return mtformer's model of this size."""
    return Transformer(model_config(size, dropout), size.vocab_size, size.vocab_size, compute_dtype=compute_dtype)


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` without attention dropout, with positions, and scaled and tied embeddings."""

    positions: Tensor

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        warnings.filterwarnings("ignore", message="enable_nested_tensor")  # concerns only inference
        self.transformer = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.num_layers,
            size.num_layers,
            size.d_ff,
            dropout,
            batch_first=True,
            norm_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.embedding = nn.Embedding(size.vocab_size, size.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(size.d_model)
        self.register_buffer("positions", sinusoid(MAX_POSITIONS, size.d_model))

    def forward(self, src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        """Return the logits (B, T, V)."""
        length = tgt_BT.size(1)
        src_pad_BS = src_BS == PAD
        hidden_BTD = self.transformer(
            self._embed(src_BS),
            self._embed(tgt_BT),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=tgt_BT.device).triu(1),
            src_key_padding_mask=src_pad_BS,
            memory_key_padding_mask=src_pad_BS,
            tgt_is_causal=True,
        )
        return F.linear(hidden_BTD, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.size(1)])


def marian(size: Size, dropout: float = 0.0) -> "MarianMTModel":
    """Return a Hugging Face Marian model with random weights, without attention dropout."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=size.vocab_size,
            decoder_vocab_size=size.vocab_size,
            max_position_embeddings=MAX_POSITIONS,
            d_model=size.d_model,
            encoder_layers=size.num_layers,
            decoder_layers=size.num_layers,
            encoder_attention_heads=size.num_heads,
            decoder_attention_heads=size.num_heads,
            encoder_ffn_dim=size.d_ff,
            decoder_ffn_dim=size.d_ff,
            activation_function="relu",
            dropout=dropout,
            attention_dropout=0.0,
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
    )


def eole(size: Size, dropout: float) -> nn.Module:
    """Return an Eole model with random weights, without attention dropout (tried with Eole 0.6.4)."""
    from eole.config.models import TransformerModelConfig
    from eole.config.training import TrainingConfig
    from eole.models.model import EncoderDecoderModel

    config = TransformerModelConfig(
        hidden_size=size.d_model, word_vec_size=size.d_model, layers=size.num_layers, heads=size.num_heads,
        transformer_ff=size.d_ff, add_qkvbias=True, add_ffnbias=True, share_embeddings=True,
        share_decoder_embeddings=True, embeddings={"position_encoding_type": "SinusoidalConcat"},
    )  # fmt: skip
    pieces = {f"piece{number}": number for number in range(size.vocab_size)}
    vocabularies = {"src": pieces, "tgt": pieces, "specials": {"pad_token": f"piece{PAD}"}}
    training = TrainingConfig(dropout=[dropout], attention_dropout=[0.0], param_init_method="xavier_uniform")
    model = EncoderDecoderModel.build(config, vocabularies, training)
    model.init_weights(training)
    return model


# ---- options and text -----------------------------------------------------------------------------------------------


def add_options(
    parser: argparse.ArgumentParser, systems: Sequence[str], default_sizes: Sequence[str], default_rounds: int
) -> None:
    """Add the options shared by the training and decoding benchmarks."""
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="source text, plain or .gz")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="target text, plain or .gz")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=default_sizes)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM",
                        help=f"systems to measure: {', '.join(systems)}")  # fmt: skip
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="vocabulary size of the joint tokenizer")
    parser.add_argument("--rounds", type=int, default=default_rounds, help="number of turns of each system")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write all results to this file")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, plain or .gz."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def train_tokenizer(files: Sequence[Path], vocab_size: int = VOCAB_SIZE) -> sentencepiece.SentencePieceProcessor:
    """Train a joint SentencePiece model on the files, with mtformer's special ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for file in files for line in read_lines(file)),
        model_writer=model,
        vocab_size=vocab_size,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
