"""Lossless conversion of models to the CTranslate2 format.

D model width, H heads, G key/value heads, K head width, V vocabulary.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtformer.config.schema import ModelConfig
from mtformer.data.store.cache import CTRANSLATE2, delete_unused, entries, make_lock
from mtformer.decoding.ctranslate2.loading import import_ctranslate2, special_names
from mtformer.decoding.search.inference import alignment_layer
from mtformer.errors import CheckpointError, ConfigError, explain_write_errors, log
from mtformer.files import (
    CHECKSUMS,
    atomic_folder,
    cache_folder,
    file_sha256,
    json_sha256,
    unchanged,
    verify_all,
    write_checksums,
)
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.ops import NORM_EPS, LayerNorm, Linear
from mtformer.model.positions import SINUSOID_BASE
from mtformer.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer
from mtformer.text.tokenizer import TokenizerPair
from mtformer.version import __version__
from mtformer.weights import load_weights

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH", "geglu": "GELU"}
"""Names in `ctranslate2.specs.Activation`. Its GELU is exact (computed with erf), like ours."""
NUM_SPECIAL = 4
"""Number of special pieces, which have the first ids: pad, unk, bos and eos."""
UNUSED_SECONDS = 30 * 24 * 3600
"""Time after which a converted model that was not used is deleted from the cache."""


def cached_model(weights: Sequence[Path], config: ModelConfig, tokenizers: TokenizerPair) -> Path:
    """Return the folder of the converted model (float32), which is created on first use.

    It is in the cache, because a run directory may be read-only or temporary. Its name is a checksum of the inputs.
    Converting a model also deletes those not used for a month. For arguments and errors see `write_model`.
    """
    library = import_ctranslate2()
    weight_hashes = [file_sha256(path) for path in weights]
    sources = {
        "versions": [__version__, library.__version__],
        "weights": weight_hashes,
        "model": config.model_dump(),
        "tokenizers": [tokenizers.src.sha256, tokenizers.tgt.sha256],
    }
    name = json_sha256(sources)[:32]
    folder = cache_folder() / CTRANSLATE2 / name
    with make_lock(folder):
        if not _is_intact(folder):
            _delete_unused_models(folder.parent)
            log.info("converting the model to CTranslate2 format in %s (once for these weights)", folder)
            with (
                explain_write_errors(f"{folder}: the converted model", "set MTFORMER_CACHE to another folder"),
                atomic_folder(folder) as temporary,
                _require_same(weights, weight_hashes),
            ):
                write_model(temporary, weights, config, tokenizers)
                write_checksums(temporary)
        os.utime(folder)
    return folder


def _is_intact(folder: Path) -> bool:
    """Return True if a converted model exists and no file is damaged."""
    try:
        verify_all(folder, CHECKSUMS)  # the vocabulary, too: it decides which piece an id is
    except CheckpointError:
        return False
    return True


def _delete_unused_models(models: Path) -> None:
    for folder in entries(models):
        age = time.time() - folder.stat().st_mtime
        if age > UNUSED_SECONDS:
            delete_unused(folder)


@contextmanager
def _require_same(weights: Sequence[Path], hashes: Sequence[str]) -> Iterator[None]:
    """Raise CheckpointError unless weight files have these SHA-256 and do not change inside the context.

    Otherwise the conversion of other weights would be saved, and used again, under the name of these.
    """
    with unchanged(*weights):
        for path, sha256 in zip(weights, hashes, strict=True):
            if file_sha256(path) != sha256:
                raise CheckpointError(f"{path}: changed while it was being read; run the command again")
        yield


def write_model(
    folder: Path,
    weights: Sequence[Path],
    config: ModelConfig,
    tokenizers: TokenizerPair,
    quantization: str | None = None,
) -> None:
    """Write a model in CTranslate2 format to an existing folder.

    Args:
        folder: folder of the new files.
        weights: weight files, of which the mean is written.
        config: architecture of the model.
        tokenizers: tokenizers of the model, whose pieces become the vocabularies.
        quantization: type of the stored weights, such as `int8` or `float16`; None: float32.

    Raise ConfigError if CTranslate2 is not installed or does not support a setting of the model.
    """
    model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    load_weights(model, *weights)
    _require_known_parameters(model)
    spec = to_spec(model, tokenizers)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def to_spec(model: Transformer, tokenizers: TokenizerPair) -> Any:
    """Return the model as a `ctranslate2.specs.TransformerSpec` with copies of its weights."""
    specs = import_ctranslate2().specs
    config = model.config

    # Empty specifications of the encoder and the decoder.
    common = _common_options(config, specs.common_spec.Activation)
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, **common)
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers,
        alignment_layer=alignment_layer(config.num_decoder_layers),
        alignment_heads=config.num_heads,
        **common,
    )

    # Embeddings, positions, final norms and the projection to the vocabulary.
    _fill_ends(encoder, encoder.embeddings[0], model.src_embedding, model.src_positions, model.encoder_norm)
    _fill_ends(decoder, decoder.embeddings, model.tgt_embedding, model.tgt_positions, model.decoder_norm)

    decoder.projection.weight = _copy(model.output)
    if model.output_bias is not None:
        decoder.projection.bias = _copy(model.output_bias)

    # Layers.
    for layer, layer_spec in zip(model.encoder, encoder.layer, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_layer(layer_spec, layer)
    for layer, layer_spec in zip(model.decoder, decoder.layer, strict=True):
        assert isinstance(layer, DecoderLayer)
        _fill_layer(layer_spec, layer)
        cross_attention = layer.cross_attention
        norm = layer.cross_attention_residual.norm
        num_query_rows = cross_attention.H * cross_attention.K
        _fill_attention(layer_spec.attention, cross_attention, norm, num_query_rows)

    spec = specs.TransformerSpec(encoder, decoder)
    _register_vocabularies(spec, tokenizers)
    return spec


def _common_options(config: ModelConfig, activations: Any) -> dict[str, Any]:
    """Return the options that encoder and decoder have in common; `activations`: the library's enum."""
    has_grouped_heads = config.num_kv_heads not in (None, config.num_heads)
    head_width = config.d_model // config.num_heads
    return {
        "num_heads": config.num_heads,
        "num_heads_kv": config.num_kv_heads if has_grouped_heads else None,
        "pre_norm": config.norm_position == "pre",
        "rms_norm": config.norm == "rmsnorm",
        "activation": getattr(activations, ACTIVATIONS[config.activation]),
        "ffn_glu": config.activation in ("swiglu", "geglu"),
        "rotary_dim": head_width if config.positions == "rotary" else None,
        "rotary_interleave": False,  # dimension i of a head is paired with dimension i + K/2
        "rotary_base": SINUSOID_BASE,
    }


def _fill_ends(spec: Any, embeddings: Any, weight_VD: Tensor, positions: nn.Module | None, norm: nn.Module) -> None:
    """Fill in what encoder and decoder have before and after their layers."""
    embeddings.weight = _copy(weight_VD)
    if positions is not None:
        # By default, CTranslate2 computes its own sinusoids, which start at position 1 and have different frequencies.
        spec.position_encodings.encodings = _copy(positions.weight)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if not isinstance(norm, nn.Identity):
        _fill_norm(spec.layer_norm, norm)


def _fill_layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """Fill in the sub-layers that encoder and decoder layers have in common."""
    _fill_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual.norm)
    _fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)


def _fill_attention(
    spec: Any, attention: MultiHeadAttention, norm: nn.Module, num_query_rows: int | None = None
) -> None:
    """Fill in an attention layer.

    In self-attention, one matrix has the rows of queries, keys and values, in this order, as in our model. In
    cross-attention, the first `num_query_rows` rows, those of queries, are a matrix of their own.
    """
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear[0], attention.in_projection, stop=num_query_rows)
    if num_query_rows is not None:
        _fill_linear(spec.linear[1], attention.in_projection, start=num_query_rows)
    _fill_linear(spec.linear[-1], attention.out_projection)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear_1, feed_forward.contract)
    if feed_forward.is_gated:
        d_ff = feed_forward.contract.weight.size(1)
        _fill_linear(spec.linear_0, feed_forward.expand, stop=d_ff)
        _fill_linear(spec.linear_0_noact, feed_forward.expand, start=d_ff)
    else:
        _fill_linear(spec.linear_0, feed_forward.expand)


def _fill_linear(spec: Any, linear: Linear, start: int = 0, stop: int | None = None) -> None:
    spec.weight = _copy(linear.weight[start:stop])
    spec.bias = _copy(linear.bias[start:stop])


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _copy(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = _copy(norm.bias)


def _copy(weight: Tensor | nn.Module) -> Tensor:
    """Return a copy of the weight, because CTranslate2 quantizes in place."""
    assert isinstance(weight, Tensor)
    return weight.detach().to("cpu", torch.float32, copy=True)


def _register_vocabularies(spec: Any, tokenizers: TokenizerPair) -> None:
    src_pieces = tokenizers.src.vocabulary()
    tgt_pieces = tokenizers.tgt.vocabulary()
    special_pairs = zip(src_pieces[:NUM_SPECIAL], tgt_pieces[:NUM_SPECIAL], strict=True)
    for src_piece, tgt_piece in special_pairs:
        if src_piece != tgt_piece:
            raise ConfigError(
                f"tokenizer: special piece '{src_piece}' of the source is '{tgt_piece}' in the target; CTranslate2 "
                "requires the same name on both sides, so retrain one of the two tokenizers"
            )

    spec.register_source_vocabulary(src_pieces)
    spec.register_target_vocabulary(tgt_pieces)
    for name, value in special_names(tgt_pieces).items():
        setattr(spec.config, name, value)
    spec.config.layer_norm_epsilon = NORM_EPS


PARAMETERS = re.compile(
    r"(src|tgt)_embedding|output(_bias)?|(src|tgt)_positions\.weight|(en|de)coder_norm\.(weight|bias)"
    r"|(en|de)coder\.\d+\.(self|cross)_attention(\.(in|out)_projection|_residual\.norm)\.(weight|bias)"
    r"|(en|de)coder\.\d+\.feed_forward(\.(expand|contract)|_residual\.norm)\.(weight|bias)"
)
"""Names of the parameters that `to_spec` copies."""


def _require_known_parameters(model: Transformer) -> None:
    """Raise ConfigError for a parameter that `to_spec` does not copy, so that none is left out in silence."""
    for name, _ in model.named_parameters():
        if not PARAMETERS.fullmatch(name):
            problem = "the conversion to CTranslate2 does not support it"
            raise ConfigError(f"parameter {name} of the model: {problem}; use --backend mtformer, or another --format")
