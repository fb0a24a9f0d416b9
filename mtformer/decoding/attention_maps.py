"""Attention weights of every layer and head over a sentence and its translation.

L layers, H heads, S source pieces, T target pieces (tags and eos counted).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtformer.decoding.inference import alignment_layer, pad
from mtformer.decoding.inputs import check_lines
from mtformer.decoding.postprocessing import END
from mtformer.decoding.translation import Translation, align
from mtformer.decoding.translator import Translator, evaluating
from mtformer.errors import ConfigError, DataError
from mtformer.model.attention import MultiHeadAttention, record_weights
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import EOS


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of one pass over a source and its translation; float32 on the CPU, (layers, heads, query, key).

    Args:
        source, translation: the text.
        src_pieces: input of the encoder: the tag of the target language (if the model needs one), the text, eos.
        tgt_pieces: eos last.
        encoder_LHSS: from source pieces to source pieces.
        decoder_LHTT: from the query that predicts target piece t to `decoder_keys`; 0 at those after it.
        cross_LHTS: from the query that predicts target piece t to source pieces.
        num_tags: number of tags at the beginning of the source pieces.
        start: first token of the decoder, as a piece.
    """

    source: str
    translation: str
    src_pieces: list[str]
    tgt_pieces: list[str]
    encoder_LHSS: Tensor
    decoder_LHTT: Tensor
    cross_LHTS: Tensor
    num_tags: int = 0
    start: str = "<s>"

    @property
    def decoder_keys(self) -> list[str]:
        """Input pieces of the decoder: its start, and all target pieces but eos."""
        return [self.start, *self.tgt_pieces[:-1]]

    @property
    def alignment_layer(self) -> int:
        """The layer whose cross-attention gives alignments, see `attention_of_targets`."""
        return alignment_layer(len(self.cross_LHTS))

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs (source word, target word), one for each target word, as in `mtformer translate --alignment`."""
        weights_TS = self.cross_LHTS[self.alignment_layer].mean(dim=0)[:, self.num_tags :]
        return align(weights_TS, self.src_pieces[self.num_tags : -1], self.tgt_pieces[:-1])


def attention_maps(translator: Translator, source: str, translation: str | Translation | None = None) -> AttentionMaps:
    """Return all attention weights of one model over a sentence and a translation of it.

    The source is encoded in one pass, even if `Translator.translate` would split it into sentences.

    Args:
        translator: translator with one model, which may be in training.
        source: one line.
        translation: one line, or a result of the translator; None: translate the source.

    Raises:
        ConfigError: the translator has several models, or another backend.
        DataError: if source or translation is longer than the model's positions.
    """
    if len(translator.models) != 1:
        raise ConfigError("attention maps need one model of the backend mtformer; give one run and one checkpoint")
    [model], tgt, target = translator.models, translator.tokenizers.tgt, translator.engine.target
    [source] = check_lines([source])
    if translation is None:
        [translation] = translator.translate([source])
    if isinstance(translation, Translation):
        tokens, text = translation.tokens, translation.text
        pieces = [piece for piece in translation.pieces if piece != END]  # each segment of a split line has one
    else:
        [text] = check_lines([translation])
        tokens, pieces = tgt.encode([text])[0], tgt.pieces(text)
    src = [*target.tags, *translator.tokenizers.src.encode([source])[0], EOS]
    for what, length in (("source", len(src)), ("translation", len(tokens) + 1)):
        if length > translator.engine.max_positions:
            most = translator.engine.max_positions
            raise DataError(f"the {what} has {length} tokens; the model has positions for {most}, give a shorter one")
    weights = _weights(model, src, [target.start, *tokens])

    def of_layers(layers: nn.ModuleList, name: str) -> Tensor:
        return torch.stack([weights[getattr(layer, name)] for layer in layers])

    return AttentionMaps(
        source=source,
        translation=text,
        src_pieces=[*translator.tokenizers.src.id_pieces(target.tags), *translator.tokenizers.src.pieces(source), END],
        tgt_pieces=[*pieces, END],
        encoder_LHSS=of_layers(model.encoder, "self_attention"),
        decoder_LHTT=of_layers(model.decoder, "self_attention"),
        cross_LHTS=of_layers(model.decoder, "cross_attention"),
        num_tags=len(target.tags),
        start=tgt.id_pieces([target.start])[0],
    )


@torch.inference_mode()
def _weights(model: Transformer, src: list[int], tgt_in: list[int]) -> dict[nn.Module, Tensor]:
    """Return the weights (H, query, key) of each attention module of the model."""
    device = model.output.device
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    with evaluating([model]), record_weights(modules) as recorded:
        model(*pad([src], device), pad([tgt_in], device)[0])
    return {module: weights_BHTS[0].float().cpu() for module, weights_BHTS in recorded.items()}
