"""Attention weights of every layer and head for a sentence and its translation.

L layers, H heads, S source pieces, T target pieces (including tags and eos).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtformer.decoding.lines.inputs import check_length, check_lines, sentence_case
from mtformer.decoding.lines.postprocessing import END
from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.decoding.search.inference import alignment_layer, pad
from mtformer.decoding.translator import Translator, evaluating
from mtformer.errors import ConfigError
from mtformer.model.attention import MultiHeadAttention, record_weights
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
        weights_TS = self.cross_LHTS[alignment_layer(len(self.cross_LHTS))].mean(dim=0)[:, self.num_tags :]
        src_pieces, tgt_pieces = self.src_pieces[self.num_tags : -1], self.tgt_pieces[:-1]
        return Attention(src_pieces, tgt_pieces, weights_TS.tolist(), [0] * len(weights_TS)).alignment


@torch.inference_mode()
def attention_maps(translator: Translator, source: str, translation: str | Translation | None = None) -> AttentionMaps:
    """Return all attention weights of a model for a sentence and its translation.

    The source is encoded as one segment, even if `Translator.translate` would split it into sentences. If `translation`
    is None, the translator translates the source. The model may be in training mode. Raise ConfigError if the
    translator has several models or uses another backend, DataError if a side is longer than the model supports.
    """
    if translator.engine.name != "mtformer" or len(translator.models) != 1:
        raise ConfigError("attention maps need one model and the mtformer backend; give one run and one checkpoint")
    [model], tgt, target = translator.models, translator.tokenizers.tgt, translator.engine.target
    [source] = given = check_lines([source])
    if translation is None:
        [translation] = translator.translate([source])
    if isinstance(translation, Translation):
        tokens, text = translation.tokens, translation.text
        pieces = [piece for piece in translation.pieces if piece != END]  # a split line has one END per segment
        change, plain = case_of(source), tgt.decode([tokens])[0]
        if change is not None and change(text) == text and change(plain) != plain:  # see `without_case`
            source = sentence_case(source)
    else:
        [text] = check_lines([translation])
        tokens, pieces = tgt.encode([text])[0], tgt.pieces(text)
    src = [*target.tags, *translator.tokenizers.src.encode([source])[0], EOS]
    check_length("the source has", len(src), translator.engine.max_positions)
    check_length("the translation has", len(tokens) + 1, translator.engine.max_positions)
    device = model.output.device
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    with evaluating([model]), record_weights(modules) as recorded:
        model(*pad([src], device), pad([[target.start, *tokens]], device)[0])

    def of_layers(layers: nn.ModuleList, name: str) -> Tensor:
        return torch.stack([recorded[getattr(layer, name)][0].float().cpu() for layer in layers])

    return AttentionMaps(
        source=given[0],
        translation=text,
        src_pieces=[*translator.tokenizers.src.id_pieces(target.tags), *translator.tokenizers.src.pieces(source), END],
        tgt_pieces=[*pieces, END],
        decoder_keys=[*tgt.id_pieces([target.start]), *pieces],
        encoder_LHSS=of_layers(model.encoder, "self_attention"),
        decoder_LHTT=of_layers(model.decoder, "self_attention"),
        cross_LHTS=of_layers(model.decoder, "cross_attention"),
        num_tags=len(target.tags),
    )
