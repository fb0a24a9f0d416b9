"""The lines that `mtformer translate` writes for a translation: text, the format of Moses, or JSON."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtformer.decoding.lines.translation import Attention, Translation

SEPARATOR = " ||| "
"""Text between the columns of the Moses format and before alignments."""


@dataclass(frozen=True)
class OutputFormat:
    """Format of translations."""

    is_json: bool
    """One JSON object per source line; otherwise text."""
    has_attention: bool
    """JSON objects contain the cross-attention weights."""
    has_alignment: bool
    """Word alignments are appended to the text, or contained in the JSON objects."""
    is_n_best: bool
    """Text lines have the Moses format for n-best lists: number ||| text ||| score."""

    def lines(self, number: int, translation: "Translation") -> str:
        """Return the lines, with line ends, for a translation of the source line with this number (from 0)."""
        if self.is_json:
            return json.dumps(self._json_values(translation), ensure_ascii=False) + "\n"
        lines = ""
        for hypothesis in (translation, *translation.alternatives):
            lines += self._text_line(number, hypothesis) + "\n"
        return lines

    def _text_line(self, number: int, translation: "Translation") -> str:
        columns = [translation.text]
        if self.is_n_best:
            columns = [str(number), translation.text, f"{translation.score:.6f}"]
        if self.has_alignment:
            pairs = [f"{src}-{tgt}" for src, tgt in _alignment(translation)]
            columns.append(" ".join(pairs))
        return SEPARATOR.join(columns)

    def _json_values(self, translation: "Translation") -> dict[str, Any]:
        values: dict[str, Any] = {
            "text": translation.text,
            "score": translation.score,
            "log_probability": translation.log_probability,
            "length": len(translation.pieces),
            "pieces": translation.pieces,
            "token_log_probabilities": [round(value, 6) for value in translation.token_log_probabilities],
            "flags": list(translation.flags),
        }
        if translation.confidence is not None:
            values["confidence"] = translation.confidence
        if self.has_alignment:
            values["alignment"] = _alignment(translation)
        if self.has_attention:
            attention = translation.attention
            values["attention"] = None if attention is None else _attention_values(attention)
        if translation.alternatives:
            values["alternatives"] = [self._json_values(alternative) for alternative in translation.alternatives]
        return values


def _alignment(translation: "Translation") -> list[tuple[int, int]]:
    """Return the aligned source and target words; none if the translation has no attention."""
    return [] if translation.attention is None else translation.attention.alignment


def _attention_values(attention: "Attention") -> dict[str, Any]:
    values = {
        "src_pieces": attention.src_pieces,
        "tgt_pieces": attention.tgt_pieces,
        "weights": [_rounded(row) for row in attention.weights],
    }
    if any(attention.src_starts):
        values["src_starts"] = attention.src_starts
    return values


def _rounded(weights: list[float]) -> list[float]:
    return [round(weight, 5) for weight in weights]
