"""Hugging Face: a run as a folder that `transformers` loads, with the same numbers.

Post-norm models go as `MarianMTModel`, pre-norm ones as `PegasusForConditionalGeneration`, which differ in nothing else
that matters here. Both take the files of `MarianTokenizer`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mtformer.config.loading import load_config
from mtformer.config.schema import Config, ModelConfig
from mtformer.decoding.weights import find_weights
from mtformer.errors import ConfigError
from mtformer.export.bundle import check_is_free, check_language_tags
from mtformer.files import atomic_folder, write_checksums
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK, TokenizerPair
from mtformer.weights import load_weights

STOPPING: dict[str, bool | str] = {"ended": True, "estimate": False, "certain": "never"}
"""`early_stopping` there, by what it is here."""
CLASSES = {"post": ("marian", "MarianMTModel"), "pre": ("pegasus", "PegasusForConditionalGeneration")}
"""Model type and class by the position of the norms."""
LANGUAGE_CODE = re.compile(r">>((?!<<).)+<<")
"""What `MarianTokenizer` cuts off the beginning of a line, and looks up as it stands."""
ATTENTIONS = {
    "encoder": {"self_attention": ("self_attn", "self_attention_residual")},
    "decoder": {
        "self_attention": ("self_attn", "self_attention_residual"),
        "cross_attention": ("encoder_attn", "cross_attention_residual"),
    },
}


def export_huggingface(run: RunDir, target: Path, checkpoint: str | None) -> None:
    """Writes a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`.

    Args:
        run: a run directory or a bundle.
        target: the folder to write.
        checkpoint: see `find_weights`.

    Raises:
        CheckpointError: when the target exists or the checkpoint does not.
        ConfigError: when `transformers` has no class for a setting of the model or tokenizer.
    """
    check_is_free(target)
    config = load_config(run.config).config
    check_language_tags(config, "transformers")
    weights = find_weights(run, checkpoint, config.training.best_metric)
    tokenizers = TokenizerPair.load(run.tokenizer)
    _check_model(config.model)
    vocabularies = [_vocabulary(tokenizers, side) for side in ("src", "tgt")]
    model = Transformer(config.model, *map(len, vocabularies))
    load_weights(model, *weights)
    is_joint = vocabularies[0] == vocabularies[1]
    with atomic_folder(target) as folder:
        save_file(to_tensors(model), folder / "model.safetensors", {"format": "pt"})
        _write_json(folder / "config.json", _model_config(config.model, *map(len, vocabularies)))
        _write_json(folder / "generation_config.json", _generation_config(config))
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(config, list(vocabularies[0]), is_joint))
        _write_json(folder / "vocab.json", vocabularies[0])
        if not is_joint:
            _write_json(folder / "target_vocab.json", vocabularies[1])
        (folder / "source.spm").write_bytes(tokenizers.src.model)
        (folder / "target.spm").write_bytes(tokenizers.tgt.model)
        write_checksums(folder)


def tensor_names(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Names of all parameters of the layers: ours, and theirs that it is put together of, one under the other."""
    for side, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        for kind in [f"{number}.{{}}.{leaf}" for number in range(num_layers) for leaf in ("weight", "bias")]:
            ours, theirs = f"{side}.{kind}".format, f"model.{side}.layers.{kind}".format
            for attention, (name, around) in ATTENTIONS[side].items():
                yield ours(f"{attention}.in_projection"), [theirs(f"{name}.{x}_proj") for x in "qkv"]
                yield ours(f"{attention}.out_projection"), [theirs(f"{name}.out_proj")]
                yield ours(f"{around}.norm"), [theirs(f"{name}_layer_norm")]
            yield ours("feed_forward.expand"), [theirs("fc1")]
            yield ours("feed_forward.contract"), [theirs("fc2")]
            yield ours("feed_forward_residual.norm"), [theirs("final_layer_norm")]
        if config.norm_position == "pre":
            for leaf in ("weight", "bias"):
                yield f"{side}_norm.{leaf}", [f"model.{side}.layer_norm.{leaf}"]


def to_tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights as they call them, tied ones once."""
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
    if config.norm_position == "pre":  # Marian's class computes them, Pegasus' wants to read them
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_positions.weight"] = sinusoid(config.max_positions, config.d_model)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _check_model(config: ModelConfig) -> None:
    """Raises ConfigError on the first setting for which there is no class."""
    _, name = CLASSES[config.norm_position]
    cannot = {
        "norm": config.norm != "layernorm",
        "activation": config.activation in ("swiglu", "geglu"),
        "positions": config.positions != "sinusoidal",
        "num_kv_heads": config.num_kv_heads not in (None, config.num_heads),
        "tie_embeddings": config.norm_position == "pre" and config.tie_embeddings != "all",
    }
    for key, is_so in cannot.items():
        if is_so:
            raise ConfigError(
                f"model.{key} {getattr(config, key)!r} cannot be exported to Hugging Face: its {name} has no such thing"
            )


def _vocabulary(tokenizers: TokenizerPair, side: str) -> dict[str, int]:
    """Ids by piece, as `MarianTokenizer` looks them up.

    A language code must not begin with SentencePiece's space, for that class adds none before it; those of imported
    models do (see `mtformer.export.marian_tokenizer`).
    """
    tokenizer = tokenizers.src if side == "src" else tokenizers.tgt
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(tokenizer.vocabulary()):
        if side == "src" and LANGUAGE_CODE.fullmatch(piece):
            raise ConfigError(
                f"tokenizer.user_symbols '{piece}' cannot be exported to Hugging Face: MarianTokenizer cuts it off a "
                "line's beginning by itself; train with a symbol of another form"
            )
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
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": True,
        "vocab_size": src_vocab,
        "tie_word_embeddings": config.tie_embeddings != "none",
        "dtype": "float32",
        **_ids(),
    }
    if model_type == "marian":
        values |= {
            "decoder_vocab_size": tgt_vocab,
            "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        }
    return values


def _ids() -> dict[str, int]:
    return {
        "pad_token_id": PAD,
        "unk_token_id": UNK,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }


def _generation_config(config: Config) -> dict[str, Any]:
    """Our search in their words; `max_length` counts the decoder's start and eos."""
    decoding, ids = config.decoding, _ids()
    del ids["unk_token_id"]
    longest = config.model.max_positions - 1
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "early_stopping": STOPPING[decoding.early_stopping],
        "max_length": min(decoding.max_length or longest, longest) + 2,
        "bad_words_ids": [[PAD], [BOS]],
        **ids,
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
        "split_special_tokens": True,  # what looks like one in a line of text is text
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
