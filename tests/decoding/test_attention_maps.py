"""Tests of attention maps: compared to a per-head reference implementation, and to the attention from `translate`."""

import io
import math
import threading
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor
from torch.nn import functional as F
from toy import random_lines, tiny_transformer

from mtformer.config.data import DataConfig
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, EOS, Tokenizer, TokenizerPair

SOURCE, TRANSLATION = "der hund schläft im park", "die katze liest ein buch neben der frau"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a tokenizer for German words, with the tags of two languages."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(random_lines(300, seed=0)),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        user_defined_symbols=["<2de>", "<2en>"],
        **{f"{name}_id": number for number, name in enumerate(("pad", "unk", "bos", "eos"))},
        minloglevel=2,
    )
    return Tokenizer(model.getvalue())


def translator(tokenizer: Tokenizer, tags: str = "none", num_models: int = 1, **changes: Any) -> Translator:
    models = [tiny_transformer(seed, tokenizer.vocab_size, **changes) for seed in range(num_models)]
    data = DataConfig.model_validate(
        {"src_lang": "en", "tgt_lang": "de", "both_directions": tags != "none", "language_tags": tags}
    )
    return Translator(models, TokenizerPair(tokenizer, tokenizer), DecodingConfig(), data=data)


def all_maps(maps: AttentionMaps) -> list[Tensor]:
    return [maps.encoder_LHSS, maps.decoder_LHTT, maps.cross_LHTS]


class Reference:
    """Reference implementation of a pre-norm ReLU model without padding, computed head by head; stores all weights."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.config = model, model.config
        self.found: dict[str, list[list[Tensor]]] = {"encoder": [], "decoder": [], "cross": []}

    def run(self, src: list[int], tgt_in: list[int]) -> None:
        x = self.embed(src)
        for layer in self.model.encoder:
            x = x + self.attend("encoder", layer.self_attention, norm(x, layer.self_attention_residual.norm))
            x = x + feed_forward(layer, x)
        memory = norm(x, self.model.encoder_norm)
        x = self.embed(tgt_in)
        for layer in self.model.decoder:
            x = x + self.attend("decoder", layer.self_attention, norm(x, layer.self_attention_residual.norm))
            x = x + self.attend("cross", layer.cross_attention, norm(x, layer.cross_attention_residual.norm), memory)
            x = x + feed_forward(layer, x)

    def embed(self, ids: list[int]) -> Tensor:
        D = self.config.d_model
        x = self.model.tgt_embedding[ids] * math.sqrt(D)
        if self.config.positions == "rotary":
            return x
        angles = [[place / 10000 ** (2 * i / D) for i in range(D // 2)] for place in range(len(ids))]
        return x + torch.tensor([[math.sin(a) for a in row] + [math.cos(a) for a in row] for row in angles])

    def attend(self, kind: str, attention: MultiHeadAttention, x: Tensor, memory: Tensor | None = None) -> Tensor:
        H, G = self.config.num_heads, self.config.num_kv_heads or self.config.num_heads
        K = self.config.d_model // H
        matrix, bias = attention.in_projection.weight, attention.in_projection.bias
        rows = F.linear(x, matrix, bias), F.linear(x if memory is None else memory, matrix, bias)
        weights, outputs = [], []
        for head in range(H):
            group = H + head * G // H  # keys follow all queries, and values follow all keys
            q, k, v = (
                rows[side][:, number * K : (number + 1) * K] for side, number in ((0, head), (1, group), (1, group + G))
            )
            if memory is None and self.config.positions == "rotary":
                q, k = rotate(q), rotate(k)
            scores = q @ k.T / math.sqrt(K)
            if kind == "decoder":
                scores = scores + torch.full_like(scores, -math.inf).triu(1)
            weights.append(F.softmax(scores, dim=1))
            outputs.append(weights[-1] @ v)
        self.found[kind].append(weights)
        return F.linear(torch.cat(outputs, dim=1), attention.out_projection.weight, attention.out_projection.bias)


def rotate(x: Tensor) -> Tensor:
    """Rotate each pair of dimensions (i, i + K/2), as a complex number, by the angle of its position."""
    half = x.size(1) // 2
    angles = torch.arange(len(x))[:, None] / 10000 ** (torch.arange(half) / half)
    rotated = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([rotated.real, rotated.imag], dim=1)


def norm(x: Tensor, of: Any) -> Tensor:
    return F.layer_norm(x, (x.size(1),), of.weight, of.bias)


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    expand, contract = layer.feed_forward.expand, layer.feed_forward.contract
    hidden = F.relu(F.linear(norm(x, layer.feed_forward_residual.norm), expand.weight, expand.bias))
    return F.linear(hidden, contract.weight, contract.bias)


@pytest.mark.parametrize("changes", [{}, {"num_heads": 4, "num_kv_heads": 2, "positions": "rotary"}])
def test_attention_maps_equal_reference_implementation(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    one = translator(tokenizer, num_encoder_layers=3, **changes)
    maps = attention_maps(one, SOURCE, TRANSLATION)
    [src, tgt], reference = tokenizer.encode([SOURCE, TRANSLATION]), Reference(one.models[0])
    with torch.no_grad():
        reference.run([*src, EOS], [BOS, *tgt])
    for found, weights in zip(all_maps(maps), reference.found.values(), strict=True):
        torch.testing.assert_close(found, torch.stack([torch.stack(heads) for heads in weights]), rtol=0, atol=1e-4)


def test_rows_sum_to_one_and_decoder_is_causal(tokenizer: Tokenizer) -> None:
    maps = attention_maps(translator(tokenizer), SOURCE, TRANSLATION)
    S, T = len(maps.src_pieces), len(maps.tgt_pieces)
    assert maps.src_pieces == [*tokenizer.pieces(SOURCE), "</s>"]
    assert maps.tgt_pieces == [*tokenizer.pieces(TRANSLATION), "</s>"]
    assert maps.decoder_keys == ["<s>", *tokenizer.pieces(TRANSLATION)]
    assert [tuple(one.shape) for one in all_maps(maps)] == [(2, 2, S, S), (2, 2, T, T), (2, 2, T, S)]
    for one in all_maps(maps):
        assert (one.dtype, one.device.type) == (torch.float32, "cpu")
        torch.testing.assert_close(one.sum(dim=-1), torch.ones(one.shape[:-1]))
    assert not maps.decoder_LHTT.triu(1).any()
    assert (maps.decoder_LHTT.tril() > 0).sum() == 2 * 2 * T * (T + 1) / 2


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize(("tags", "language"), [("none", None), ("source", "en"), ("target", "en")])
def test_alignment_layer_equals_attention_from_translate(
    tokenizer: Tokenizer, tags: str, language: str | None, num_layers: int
) -> None:
    one = translator(tokenizer, tags, num_decoder_layers=num_layers).into(language)
    [found] = one.translate([SOURCE], attention=True)
    maps = attention_maps(one, SOURCE)
    assert found.attention is not None
    assert maps.translation == found.text
    assert maps.tgt_pieces == found.pieces
    assert len(found.pieces) > 2
    assert maps.src_pieces[: maps.num_tags] == (["<2en>"] if tags == "source" else [])
    assert maps.decoder_keys[0] == ("<2en>" if tags == "target" else "<s>")
    shown_TS = maps.cross_LHTS[max(0, num_layers - 2)].mean(dim=0)[:-1, maps.num_tags : -1]
    torch.testing.assert_close(shown_TS, torch.tensor(found.attention.weights), rtol=0, atol=1e-6)
    assert maps.alignment == found.attention.alignment


def test_maps_of_a_line_in_capitals_are_those_of_the_search(tokenizer: Tokenizer) -> None:
    one = translator(tokenizer)
    source = "DER HUND SCHLÄFT IM PARK"
    [found] = one.translate([source], attention=True)
    maps = attention_maps(one, source)
    assert (maps.source, maps.translation) == (source, found.text)
    assert maps.src_pieces[:-1] == tokenizer.pieces("Der hund schläft im park")
    assert maps.alignment == one.translate(["Der hund schläft im park"], attention=True)[0].attention.alignment


def test_attention_maps_of_bundle_with_packed_weights(run: RunDir) -> None:
    plain, narrow = (Translator.load(run.path, device="cpu", precision=name) for name in ("fp32", "bf16"))
    maps = attention_maps(plain, SOURCE)
    [found] = plain.translate([SOURCE], attention=True)
    assert found.attention is not None
    shown_TS = maps.cross_LHTS[0].mean(dim=0)[:-1, :-1]
    torch.testing.assert_close(shown_TS, torch.tensor(found.attention.weights), rtol=0, atol=1e-6)
    close = attention_maps(narrow, SOURCE, maps.translation)
    assert close.cross_LHTS.dtype == torch.float32
    torch.testing.assert_close(close.encoder_LHSS[0], maps.encoder_LHSS[0], rtol=0, atol=0.1)


def test_unknown_pieces_keep_their_text(tokenizer: Tokenizer) -> None:
    maps = attention_maps(translator(tokenizer), "der ☃\x85hund", "die ☃")
    assert maps.source == "der ☃ hund"
    assert "☃" in maps.src_pieces
    assert "☃" in maps.tgt_pieces


def test_empty_source_and_translation_attend_to_eos(tokenizer: Tokenizer) -> None:
    maps = attention_maps(translator(tokenizer), "", None)
    assert (maps.src_pieces, maps.tgt_pieces, maps.translation) == (["</s>"], ["</s>"], "")
    assert all(one.flatten().tolist() == [1.0] * 4 for one in all_maps(maps))
    assert maps.alignment == []


def test_attention_maps_restore_the_state_of_the_model(tokenizer: Tokenizer) -> None:
    one = translator(tokenizer, dropout=0.5)
    model = one.models[0].train()
    maps = [attention_maps(one, SOURCE, TRANSLATION) for _ in range(2)]
    assert model.training
    assert torch.equal(maps[0].cross_LHTS, maps[1].cross_LHTS)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_attention_maps_ignore_concurrent_use_of_the_model(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = translator(tokenizer)
    expected = attention_maps(one, SOURCE, TRANSLATION)
    decode, ids, read = Transformer.decode, torch.tensor([[5, 6, EOS]]), []

    def interrupted(self: Transformer, *arguments: Any, **named: Any) -> Tensor:
        """Encode another sentence in another thread, after the encoder and before the decoder."""

        def read_another() -> None:
            with torch.inference_mode():
                read.append(self.encode(ids, torch.tensor([3])))

        thread = threading.Thread(target=read_another)
        thread.start()
        thread.join()
        return decode(self, *arguments, **named)

    monkeypatch.setattr(Transformer, "decode", interrupted)
    maps = attention_maps(one, SOURCE, TRANSLATION)
    assert len(read) == 1
    assert all(torch.equal(a, b) for a, b in zip(all_maps(maps), all_maps(expected), strict=True))


def test_too_long_lines_raise_data_error(tokenizer: Tokenizer) -> None:
    one = translator(tokenizer, max_positions=20)
    for texts, what in (
        ((SOURCE + " hund" * 20, TRANSLATION[:9]), "source"),
        ((SOURCE[:9], "ein" * 40), "translation"),
    ):
        with pytest.raises(DataError, match=rf"the {what} has \d+ tokens; the model supports at most 20"):
            attention_maps(one, *texts)


def test_several_models_raise_config_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="need one model and the mtformer backend"):
        attention_maps(translator(tokenizer, num_models=2), SOURCE)
