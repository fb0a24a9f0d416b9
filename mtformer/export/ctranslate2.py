"""CTranslate2: a run as a model of that engine, with the same numbers.

D model width, H heads, G key/value heads, K width of a head, V vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtformer.config.loading import load_config
from mtformer.config.schema import ModelConfig
from mtformer.decoding.ctranslate2_engine import import_ctranslate2
from mtformer.decoding.scorer import alignment_layer
from mtformer.decoding.weights import find_weights
from mtformer.errors import ConfigError
from mtformer.export.bundle import check_is_free, check_language_tags, write_companions
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.ops import NORM_EPS, LayerNorm, Linear
from mtformer.model.positions import SINUSOID_BASE, SinusoidalPositions
from mtformer.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer
from mtformer.rundir import RunDir, atomic_folder, write_checksums
from mtformer.text.tokenizer import BOS, EOS, UNK, TokenizerPair
from mtformer.weights import load_weights

# Names in `ctranslate2.specs.Activation`; its GELU is the exact one, by the error function, as ours is.
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH", "geglu": "GELU"}
NUM_SPECIAL = 4


def export_ctranslate2(run: RunDir, target: Path, checkpoint: str | None, quantization: str | None) -> None:
    """Writes a CTranslate2 model with the run's tokenizer and config beside it.

    Args:
        run: a run directory or a bundle.
        target: the folder to write.
        checkpoint: see `find_weights`.
        quantization: in what weights are stored: `int8`, `float16` and more; None: float32.

    Raises:
        CheckpointError: when the target exists or the checkpoint does not.
        ConfigError: when CTranslate2 is not installed, or cannot represent a setting of the model.
    """
    ctranslate2 = import_ctranslate2()
    kinds = ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in kinds:
        raise ConfigError(f"quantization '{quantization}': no such one in CTranslate2; use one of {', '.join(kinds)}")
    check_is_free(target)
    config = load_config(run.config).config
    check_language_tags(config, "CTranslate2")
    weights = find_weights(run, checkpoint, config.training.best_metric)
    tokenizers = TokenizerPair.load(run.tokenizer)
    model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    load_weights(model, weights)
    spec = to_spec(model, tokenizers)
    spec.validate()
    spec.optimize(quantization)
    with atomic_folder(target) as folder:
        spec.save(str(folder))
        write_companions(run, config, RunDir(folder))
        write_checksums(folder)


def to_spec(model: Transformer, tokenizers: TokenizerPair) -> Any:
    """The model as CTranslate2 describes one, `ctranslate2.specs.TransformerSpec`, on copies of its weights.

    Raises:
        ConfigError: naming the setting that CTranslate2 cannot represent.
    """
    specs = import_ctranslate2().specs
    config = model.config
    common = _settings(config)
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, **common)
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers,
        alignment_layer=alignment_layer(config.num_decoder_layers),
        alignment_heads=config.num_heads,
        **common,
    )
    _fill_ends(encoder, encoder.embeddings[0], model.src_embedding, model.src_positions, model.encoder_norm)
    _fill_ends(decoder, decoder.embeddings, model.tgt_embedding, model.tgt_positions, model.decoder_norm)
    decoder.projection.weight = _copy(model.output)
    if model.output_bias is not None:
        decoder.projection.bias = _copy(model.output_bias)
    for layer, layer_spec in zip(model.encoder, encoder.layer, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_self_attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_residual.norm)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    for layer, layer_spec in zip(model.decoder, decoder.layer, strict=True):
        assert isinstance(layer, DecoderLayer)
        _fill_self_attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_residual.norm)
        _fill_cross_attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_residual.norm)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    spec = specs.TransformerSpec(encoder, decoder)
    _register_vocabularies(spec, tokenizers)
    return spec


def _settings(config: ModelConfig) -> dict[str, Any]:
    """What encoder and decoder have in common."""
    common = import_ctranslate2().specs.common_spec
    return {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_position == "pre",
        "activation": getattr(common.Activation, ACTIVATIONS[config.activation]),
        "ffn_glu": config.activation in ("swiglu", "geglu"),
        "rms_norm": config.norm == "rmsnorm",
        "num_heads_kv": config.num_kv_heads if config.num_kv_heads != config.num_heads else None,
        "rotary_dim": config.d_model // config.num_heads if config.positions == "rotary" else None,
        "rotary_interleave": False,  # dimension i of a head is paired with i + K/2
        "rotary_base": SINUSOID_BASE,
    }


def _fill_ends(spec: Any, embeddings: Any, weight_VD: Tensor, positions: nn.Module | None, norm: nn.Module) -> None:
    """What stands before and behind the layers."""
    embeddings.weight = _copy(weight_VD)
    if positions is not None:
        # Left alone, CTranslate2 makes sinusoids of its own: they begin at position 1 and have other frequencies.
        is_fixed = isinstance(positions, SinusoidalPositions)
        spec.position_encodings.encodings = _copy(positions.table if is_fixed else positions.weight)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if not isinstance(norm, nn.Identity):
        _fill_norm(spec.layer_norm, norm)


def _fill_self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear[0], attention.in_projection)  # queries, keys, values: the order is the same
    _fill_linear(spec.linear[1], attention.out_projection)


def _fill_cross_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    num_queries = attention.H * attention.K
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear[0], attention.in_projection, stop=num_queries)
    _fill_linear(spec.linear[1], attention.in_projection, start=num_queries)
    _fill_linear(spec.linear[2], attention.out_projection)


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
    """CTranslate2 quantises in place, so it never gets the weights themselves."""
    assert isinstance(weight, Tensor)
    return weight.detach().to("cpu", torch.float32, copy=True)


def _register_vocabularies(spec: Any, tokenizers: TokenizerPair) -> None:
    """All pieces in the order of their ids, as many as the embeddings have rows."""
    src, tgt = tokenizers.src.vocabulary(), tokenizers.tgt.vocabulary()
    for of_src, of_tgt in zip(src[:NUM_SPECIAL], tgt[:NUM_SPECIAL], strict=True):
        if of_src != of_tgt:
            raise ConfigError(
                f"tokenizer: special piece '{of_src}' of the source is '{of_tgt}' in the target; CTranslate2 has one "
                "name for both, so train one of the two anew"
            )
    spec.register_source_vocabulary(src)
    spec.register_target_vocabulary(tgt)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = tgt[UNK], tgt[BOS], tgt[EOS]
    spec.config.decoder_start_token = tgt[BOS]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = NORM_EPS
