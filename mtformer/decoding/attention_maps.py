"""Attention weights of every layer and head for a sentence and its translation.

L layers, H heads, S source pieces, T target pieces (including tags and eos).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtformer.decoding.lines.inputs import check_length, check_lines, sentence_case
from mtformer.decoding.lines.postprocessing import END
from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.decoding.search.inference import alignment_layer, pad
from mtformer.decoding.translator import Translator, evaluating
from mtformer.enums import Backend
from mtformer.errors import ConfigError
from mtformer.model.attention import MultiHeadAttention, record_weights
from mtformer.model.transformer import Transformer
from mtformer.text.case import case_of
from mtformer.text.tokenizer import EOS


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights (layers, heads, query, key) of one forward pass: float32 tensors on the CPU.

    `src_pieces` begins with `num_tags` tags (of the target language, if the model needs one) and ends with eos;
    `tgt_pieces` ends with eos. The decoder query that predicts target piece t attends to the source pieces and to
    `decoder_keys`, the start token and all target pieces except eos; weights of keys after it are 0.
    """

    source: str
    translation: str
    src_pieces: list[str]
    tgt_pieces: list[str]
    decoder_keys: list[str]
    encoder_LHSS: Tensor
    decoder_LHTT: Tensor
    cross_LHTS: Tensor
    num_tags: int = 0

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs (source word, target word), one per target word, as in `mtformer translate --alignment`."""
        layer = alignment_layer(len(self.cross_LHTS))
        mean_TS = self.cross_LHTS[layer].mean(dim=0)
        without_tags_TS = mean_TS[:, self.num_tags :]
        src_pieces = self.src_pieces[self.num_tags : -1]
        tgt_pieces = self.tgt_pieces[:-1]
        src_starts = [0] * len(without_tags_TS)
        attention = Attention(src_pieces, tgt_pieces, without_tags_TS.tolist(), src_starts)
        return attention.alignment


@dataclass(frozen=True)
class _Pair:
    """A source and its translation, as the model reads them."""

    source: str
    """The source as it was searched, which may be in another case."""
    text: str
    """The translation."""
    tokens: list[int]
    pieces: list[str]
    """Pieces of the translation without eos."""


@torch.inference_mode()
def attention_maps(translator: Translator, source: str, translation: str | Translation | None = None) -> AttentionMaps:
    """Return all attention weights of a model for a sentence and its translation.

    The source is encoded as one segment, even if `Translator.translate` would split it into sentences.

    Args:
        translator: translator with a single model, which may be in training mode.
        source: a single line.
        translation: a single line, or a result of the translator; None: the translator translates the source.

    Raise ConfigError if the translator has several models or uses another backend, DataError if a side is longer than
    the model supports.
    """
    engine = translator.engine
    if engine.name != Backend.MTFORMER or len(translator.models) != 1:
        raise ConfigError("attention maps need one model and the mtformer backend; give one run and one checkpoint")
    [model] = translator.models
    target = engine.target
    [checked_source] = check_lines([source])
    pair = _pair(translator, checked_source, translation)

    src_tokenizer = translator.tokenizers.src
    [src_ids] = src_tokenizer.encode([pair.source])
    encoder_input = [*target.tags, *src_ids, EOS]
    decoder_input = [target.start, *pair.tokens]
    check_length("the source has", len(encoder_input), engine.max_positions)
    check_length("the translation has", len(decoder_input), engine.max_positions)

    weights_of = _record(model, encoder_input, decoder_input)
    encoder_LHSS = _of_layers(model.encoder, "self_attention", weights_of)
    decoder_LHTT = _of_layers(model.decoder, "self_attention", weights_of)
    cross_LHTS = _of_layers(model.decoder, "cross_attention", weights_of)

    tag_pieces = src_tokenizer.id_pieces(target.tags)
    src_pieces = src_tokenizer.pieces(pair.source)
    [start_piece] = translator.tokenizers.tgt.id_pieces([target.start])
    return AttentionMaps(
        source=checked_source,
        translation=pair.text,
        src_pieces=[*tag_pieces, *src_pieces, END],
        tgt_pieces=[*pair.pieces, END],
        decoder_keys=[start_piece, *pair.pieces],
        encoder_LHSS=encoder_LHSS,
        decoder_LHTT=decoder_LHTT,
        cross_LHTS=cross_LHTS,
        num_tags=len(tag_pieces),
    )


def _pair(translator: Translator, source: str, translation: str | Translation | None) -> _Pair:
    """Return a source and its translation, whose tokens are those of the search if the translator has made it."""
    tokenizer = translator.tokenizers.tgt
    if isinstance(translation, str):
        [text] = check_lines([translation])
        [tokens] = tokenizer.encode([text])
        return _Pair(source, text, tokens, tokenizer.pieces(text))

    if translation is None:
        [translation] = translator.translate([source])
    pieces = [piece for piece in translation.pieces if piece != END]  # a split line has one END per segment

    if _was_searched_in_sentence_case(source, translation, translator):
        source = sentence_case(source, translator.src_lang)
    return _Pair(source, translation.text, translation.tokens, pieces)


def _was_searched_in_sentence_case(source: str, translation: Translation, translator: Translator) -> bool:
    """Return True if the text of a translation, but not its tokens, has the case of the source; see `without_case`."""
    change = case_of(source, translator.src_lang)
    if change is None:
        return False
    [searched_text] = translator.tokenizers.tgt.decode([translation.tokens])
    language = translator.tgt_lang
    has_case = change(translation.text, language) == translation.text
    return has_case and change(searched_text, language) != searched_text


def _record(
    model: Transformer, encoder_input: Sequence[int], decoder_input: Sequence[int]
) -> Mapping[MultiHeadAttention, Tensor]:
    """Return the attention weights (1, heads, query, key) of each module in one forward pass."""
    device = model.output.device
    src_BS, src_lengths_B = pad([encoder_input], device)
    tgt_BT, _ = pad([decoder_input], device)
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    with evaluating([model]), record_weights(modules) as recorded:
        model(src_BS, src_lengths_B, tgt_BT)
    return recorded


def _of_layers(layers: nn.ModuleList, name: str, weights_of: Mapping[MultiHeadAttention, Tensor]) -> Tensor:
    """Return the weights of the attention with this name in all layers: float32, on the CPU."""
    weights = []
    for layer in layers:
        attention = getattr(layer, name)
        [weights_HTS] = weights_of[attention]
        weights.append(weights_HTS.float().cpu())
    return torch.stack(weights)
