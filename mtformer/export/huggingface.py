"""Lossless export to a Hugging Face folder that `transformers` loads.

Post-norm models become a `MarianMTModel`, pre-norm models a `PegasusForConditionalGeneration`; with `MarianTokenizer`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from mtformer.config.schema import Config, ModelConfig
from mtformer.errors import ConfigError
from mtformer.files import write_json
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK, TokenizerPair
from mtformer.weights import load_weights

STOPPING: dict[str, bool | str] = {"auto": False, "ended": True, "estimate": False, "certain": "never"}
"""`early_stopping` in Hugging Face for each of our values."""
CLASSES = {"post": ("marian", "MarianMTModel"), "pre": ("pegasus", "PegasusForConditionalGeneration")}
"""Model type and class for each position of the norms."""
LANGUAGE_CODE = re.compile(r">>((?!<<).)+<<")
"""Text at the beginning of a line that `MarianTokenizer` looks up as a single piece."""
IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": EOS,
}
ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
"""Hugging Face's names of our attention modules."""


def write_huggingface(folder: Path, config: Config, tokenizers: TokenizerPair, weights: Sequence[Path]) -> None:
    """Write the files of a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`.

    Raise ConfigError if `transformers` has no class that supports a setting of the model or tokenizer.
    """
    _check_model(config.model)
    vocabularies = [_vocabulary(tokenizers, side) for side in ("src", "tgt")]
    model = Transformer(config.model, *map(len, vocabularies))
    load_weights(model, *weights)
    is_joint = vocabularies[0] == vocabularies[1]
    (folder / "model.safetensors").write_bytes(save(to_tensors(model), {"format": "pt"}))
    files = {
        "config": _model_config(config.model, *map(len, vocabularies)),
        "generation_config": _generation_config(config, tokenizers.tgt.tag_ids),
        "tokenizer_config": _tokenizer_config(config, list(vocabularies[0]), is_joint),
        "vocab": vocabularies[0],
        **({} if is_joint else {"target_vocab": vocabularies[1]}),
    }
    for name, values in files.items():
        write_json(folder / f"{name}.json", values, indent=2)
    (folder / "source.spm").write_bytes(tokenizers.src.model)
    (folder / "target.spm").write_bytes(tokenizers.tgt.model)
    tokenizers.save_rules(folder)


def tensor_names(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield our name for each layer parameter, and the names of the Hugging Face tensors that it concatenates."""
    for side, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        for kind in [f"{number}.{{}}.{leaf}" for number in range(num_layers) for leaf in ("weight", "bias")]:
            ours, theirs = f"{side}.{kind}".format, f"model.{side}.layers.{kind}".format
            for attention, name in ATTENTIONS[side].items():
                yield ours(f"{attention}.in_projection"), [theirs(f"{name}.{x}_proj") for x in "qkv"]
                yield ours(f"{attention}.out_projection"), [theirs(f"{name}.out_proj")]
                yield ours(f"{attention}_residual.norm"), [theirs(f"{name}_layer_norm")]
            yield ours("feed_forward.expand"), [theirs("fc1")]
            yield ours("feed_forward.contract"), [theirs("fc2")]
            yield ours("feed_forward_residual.norm"), [theirs("final_layer_norm")]
        if config.norm_position == "pre":
            for leaf in ("weight", "bias"):
                yield f"{side}_norm.{leaf}", [f"model.{side}.layer_norm.{leaf}"]


def to_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights under their Hugging Face names; tied weights occur once."""
    config, own = model.config, dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, theirs in tensor_names(config):
        tensors.update(zip(theirs, own[name].detach().chunk(len(theirs)), strict=True))
    if config.tie_embeddings == "all":
        tensors["model.shared.weight"] = model.tgt_embedding.detach()
    else:
        tensors["model.encoder.embed_tokens.weight"] = model.src_embedding.detach()
        tensors["model.decoder.embed_tokens.weight"] = model.tgt_embedding.detach()
    if config.tie_embeddings == "none":
        tensors["lm_head.weight"] = model.output.detach()
    bias = model.output_bias if model.output_bias is not None else model.output.new_zeros(len(model.output))
    tensors["final_logits_bias"] = bias.detach().unsqueeze(0)
    if config.norm_position == "pre":  # computed by the Marian class, but loaded by the Pegasus class
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_positions.weight"] = sinusoid(config.max_positions, config.d_model)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _check_model(config: ModelConfig) -> None:
    """Raise ConfigError for the first setting that the Hugging Face class does not support."""
    _, name = CLASSES[config.norm_position]
    cannot = {
        "norm": config.norm != "layernorm",
        "activation": config.activation in ("swiglu", "geglu"),
        "positions": config.positions != "sinusoidal",
        "num_kv_heads": config.num_kv_heads not in (None, config.num_heads),
        "tie_embeddings": config.norm_position == "pre" and config.tie_embeddings != "all",
    }
    for key, is_unsupported in cannot.items():
        if is_unsupported:
            value = getattr(config, key)
            raise ConfigError(f"model.{key} {value!r} cannot be exported to Hugging Face: {name} does not support it")


def _vocabulary(tokenizers: TokenizerPair, side: str) -> dict[str, int]:
    """Return the id of each piece, spelled as `MarianTokenizer` looks it up.

    `MarianTokenizer` adds no space before a language code, so the codes of imported models are written without
    SentencePiece's space (see `mtformer.export.marian_tokenizer`).
    """
    tokenizer = tokenizers.src if side == "src" else tokenizers.tgt
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(tokenizer.vocabulary()):
        if side == "src" and LANGUAGE_CODE.fullmatch(piece):
            why = "because MarianTokenizer treats it as a language code at the beginning of a line"
            what = f"tokenizer.user_symbols '{piece}' cannot be exported to Hugging Face, {why}"
            raise ConfigError(f"{what}; train with a symbol in another format")
        is_code = piece[:1] == "▁" and LANGUAGE_CODE.fullmatch(piece[1:])
        vocabulary[piece[1:] if is_code else piece] = number
    return vocabulary


def _model_config(config: ModelConfig, src_vocab: int, tgt_vocab: int) -> dict[str, Any]:
    model_type, name = CLASSES[config.norm_position]
    values: dict[str, Any] = {"architectures": [name], "model_type": model_type, "is_encoder_decoder": True}
    for side, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        values[f"{side}_layers"] = num_layers
        values[f"{side}_attention_heads"] = config.num_heads
        values[f"{side}_ffn_dim"] = config.d_ff
    values |= {
        "d_model": config.d_model,
        "num_hidden_layers": config.num_encoder_layers,
        "activation_function": config.activation,
        **{key: getattr(config, key) for key in ("dropout", "attention_dropout", "activation_dropout")},
        "max_position_embeddings": config.max_positions,
        "scale_embedding": True,
        "vocab_size": src_vocab,
        "tie_word_embeddings": config.tie_embeddings != "none",
        "dtype": "float32",
        "unk_token_id": UNK,
        **IDS,
    }
    if model_type == "marian":
        values |= {"decoder_vocab_size": tgt_vocab, "share_encoder_decoder_embeddings": config.tie_embeddings == "all"}
    return values


def _generation_config(config: Config, tag_ids: Sequence[int]) -> dict[str, Any]:
    """Return the search settings; `max_length` includes the decoder's start token and eos."""
    decoding = config.decoding
    longest = config.model.max_positions - 1
    for key in ("sampling", "mbr_samples", "min_length_ratio", "keep"):
        if getattr(decoding, key):
            raise ConfigError(f"decoding.{key} cannot be exported to Hugging Face; remove it")
    if decoding.repetition_penalty != 1 and decoding.beam_size == 1:  # there, Hugging Face changes logits
        what = "decoding.repetition_penalty cannot be exported to Hugging Face with beam_size 1"
        raise ConfigError(f"{what}; set it to 1")
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "early_stopping": STOPPING[decoding.early_stopping],
        "max_length": min(decoding.max_length or longest, longest) + 2,
        "min_length": decoding.min_length + 1,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "repetition_penalty": decoding.repetition_penalty,
        "bad_words_ids": [[number] for number in (PAD, BOS, *tag_ids)],
        **IDS,
    }


def _tokenizer_config(config: Config, pieces: list[str], is_joint: bool) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.src_lang,
        "target_lang": config.data.tgt_lang,
        "unk_token": pieces[UNK],
        "eos_token": pieces[EOS],
        "pad_token": pieces[PAD],
        "separate_vocabs": not is_joint,
        "model_max_length": config.model.max_positions,
        "split_special_tokens": True,  # special tokens in the input are plain text
        "clean_up_tokenization_spaces": False,
    }
