"""Attention weights of sentences, as heat maps in the run report, or in a file of numbers or heat maps.

L layers, H heads, S source tokens, T target tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.search.inference import alignment_layer
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, log
from mtformer.experiment.runs import RunContents
from mtformer.files import write_json, write_text
from mtformer.report.sentences import Sentence, choose_evenly
from mtformer.templating import render

MAX_LINES = {".json": 10_000, ".html": 100}
"""Maximum number of lines in a file, by its suffix."""
DIGITS = 5
"""Number of decimal digits of the weights in a JSON file."""
MAX_WORDS = 15
"""Maximum number of words in a sentence for which maps are drawn; larger maps are hard to read."""
MAX_SENTENCES = 6
"""Maximum number of sentences for which maps are drawn in a report."""
MAX_WEIGHTS = 400_000
"""Maximum number of weights in all maps of a page, about a megabyte."""


def page_maps(run: RunContents, sentences: dict[str, list[Sentence]], max_weights: int) -> list[dict[str, Any]]:
    """Return attention maps of a run: those of one sentence, and of more sentences until `max_weights` is reached."""
    chosen = choose(sentences, run)
    if not chosen or run.config is None or not (run.run.steps() or run.run.is_bundle):
        return []
    translator = Translator.load(run.run.path, device="cpu")
    num_weights = 0
    sentence_maps: list[dict[str, Any]] = []
    for label, source, language in chosen:
        maps = attention_maps(translator.into(language), source)
        num_weights += maps.encoder_LHSS.numel() + maps.decoder_LHTT.numel() + maps.cross_LHTS.numel()
        if sentence_maps and num_weights > max_weights:
            break
        sentence_maps.append(map_values(label, maps))
    return sentence_maps


def choose(sentences: dict[str, list[Sentence]], run: RunContents) -> list[tuple[str, str, str | None]]:
    """Return (label, source, target language) of test sentences from best to worst, or of the dev samples."""
    for name, worst_first in sentences.items():
        short = [sentence for sentence in worst_first if _is_short(sentence.source)]
        if short:
            best_first = short[::-1]
            return [
                (f"{name}, chrF2++ {sentence.chrf:.1f}", sentence.source, sentence.tgt_lang)
                for sentence in choose_evenly(best_first, MAX_SENTENCES)
            ]

    has_several_targets = run.config is not None and len(run.config.data.target_languages) > 1
    if not run.samples or has_several_targets:
        return []
    sources: list[str] = [source for source, _, _ in run.samples[-1]["samples"]]
    short_sources = [source for source in sources if _is_short(source)]
    return [("dev", source, None) for source in short_sources[:MAX_SENTENCES]]


def _is_short(source: str) -> bool:
    """Return True for a sentence that is not blank, and for which maps are drawn."""
    return 0 < len(source.split()) <= MAX_WORDS


def map_values(label: str, maps: AttentionMaps) -> dict[str, Any]:
    """Return the maps of a sentence for `attention.html`."""
    return {
        "label": label,
        "source": maps.source,
        "translation": maps.translation,
        "maps": {
            "cross": _one_map(maps.tgt_pieces, maps.src_pieces, maps.cross_LHTS),
            "encoder": _one_map(maps.src_pieces, maps.src_pieces, maps.encoder_LHSS),
            "decoder": _one_map(maps.tgt_pieces, maps.decoder_keys, maps.decoder_LHTT),
        },
        "layer": alignment_layer(len(maps.cross_LHTS)),
    }


def _one_map(queries: Sequence[str], keys: Sequence[str], weights: Tensor) -> dict[str, Any]:
    """Return the map of one kind of attention; weights are whole percentages by layer, head and cell."""
    percentages = (100 * weights.flatten(2)).round().int()
    return {"queries": queries, "keys": keys, "weights": percentages.tolist()}


class AttentionFile:
    """A file of attention weights: numbers (.json) or a page of heat maps (.html).

    Raise ConfigError if the suffix is unknown.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in MAX_LINES:
            raise ConfigError(f"--attention {path}: unknown format; use .json or .html")
        self.path = path
        self.maps: list[tuple[int, AttentionMaps]] = []
        """(line number, maps) of each line that was added."""

    def add(self, translator: Translator, number: int, source: str, translation: str | Translation) -> None:
        """Compute the maps of a line, counted from 1, unless it is blank; raise ConfigError for too many lines."""
        if not source.strip():
            return
        if len(self.maps) == MAX_LINES[self.path.suffix]:
            problem = f"more than {len(self.maps):,} non-blank lines"
            raise ConfigError(f"--attention {self.path}: {problem}; translate fewer lines, or write .json")
        self.maps.append((number, attention_maps(translator, source, translation)))

    def write(self) -> None:
        """Write the maps of all lines; raise ConfigError if all are blank."""
        if not self.maps:
            raise ConfigError(
                f"--attention {self.path}: every line is blank, so there is no attention; give lines with text"
            )
        if self.path.suffix == ".json":
            write_json(self.path, [_numbers(line, maps) for line, maps in self.maps])
        else:
            sentences = [map_values(f"line {line}", maps) for line, maps in self.maps]
            write_text(self.path, render("attention.html", title="Attention", sentences=sentences))
        log.info("attention written to %s", self.path)


def _numbers(line: int, maps: AttentionMaps) -> dict[str, Any]:
    """Return all values for a line; the weights are lists by layer, head, query and key."""

    def rounded(weights: Tensor) -> Any:
        return weights.double().round(decimals=DIGITS).tolist()

    return {
        "line": line,
        "source": maps.source,
        "translation": maps.translation,
        "src_pieces": maps.src_pieces,
        "tgt_pieces": maps.tgt_pieces,
        "decoder_keys": maps.decoder_keys,
        "alignment": maps.alignment,
        "encoder": rounded(maps.encoder_LHSS),
        "decoder": rounded(maps.decoder_LHTT),
        "cross": rounded(maps.cross_LHTS),
    }
