"""Attention weights of sentences, as heat maps in the run report, or in a file of numbers or heat maps.

L layers, H heads, S source tokens, T target tokens.
"""

from pathlib import Path
from typing import Any

from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.search.inference import alignment_layer
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, log
from mtformer.experiment.runs import RunContents
from mtformer.files import write_json, write_text
from mtformer.report.sentences import Sentence, choose_evenly
from mtformer.templating import render

MAX_LINES = {".json": 10_000, ".html": 100}  # maximum number of lines in a file, by its suffix
DIGITS = 5
MAX_WORDS = 15  # maximum number of words in a sentence for which maps are drawn; larger maps are hard to read
MAX_SENTENCES = 6
MAX_WEIGHTS = 400_000  # maximum number of weights in all maps of a page, about a megabyte


def page_maps(run: RunContents, sentences: dict[str, list[Sentence]], max_weights: int) -> list[dict[str, Any]]:
    """Return attention maps of a run: those of one sentence, and of more sentences until `max_weights` is reached."""
    chosen = choose(sentences, run)
    if not chosen or run.config is None or not (run.run.steps() or run.run.is_bundle):
        return []
    translator = Translator.load(run.run.path, device="cpu")
    found: list[dict[str, Any]] = []
    for label, source, language in chosen:
        one = attention_maps(translator.into(language), source)
        max_weights -= sum(weights.numel() for weights in (one.encoder_LHSS, one.decoder_LHTT, one.cross_LHTS))
        if found and max_weights < 0:
            break
        found.append(map_values(label, one))
    return found


def choose(sentences: dict[str, list[Sentence]], run: RunContents) -> list[tuple[str, str, str | None]]:
    """Return (label, source, target language) of test sentences from best to worst, or of the dev samples."""
    for name, all_of_set in sentences.items():
        short = [one for one in all_of_set if 0 < len(one.source.split()) <= MAX_WORDS]
        if short:
            evenly = choose_evenly(short[::-1], MAX_SENTENCES)
            return [(f"{name}, chrF2++ {one.chrf:.1f}", one.source, one.tgt_lang) for one in evenly]
    if not run.samples or (run.config is not None and len(run.config.data.target_languages) > 1):
        return []
    sources: list[str] = [source for source, _, _ in run.samples[-1]["samples"]]
    short_sources = [source for source in sources if 0 < len(source.split()) <= MAX_WORDS]
    return [("dev", source, None) for source in short_sources[:MAX_SENTENCES]]


def map_values(label: str, one: AttentionMaps) -> dict[str, Any]:
    """Return the maps of a sentence for `attention.html`; weights are whole percentages by layer, head and cell."""
    maps = {
        "cross": (one.tgt_pieces, one.src_pieces, one.cross_LHTS),
        "encoder": (one.src_pieces, one.src_pieces, one.encoder_LHSS),
        "decoder": (one.tgt_pieces, one.decoder_keys, one.decoder_LHTT),
    }
    return {
        "label": label,
        "source": one.source,
        "translation": one.translation,
        "maps": {
            kind: {"queries": queries, "keys": keys, "weights": (100 * weights.flatten(2)).round().int().tolist()}
            for kind, (queries, keys, weights) in maps.items()
        },
        "layer": alignment_layer(len(one.cross_LHTS)),
    }


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
            what = f"more than {len(self.maps):,} non-blank lines"
            raise ConfigError(f"--attention {self.path}: {what}; translate fewer lines, or write .json")
        self.maps.append((number, attention_maps(translator, source, translation)))

    def write(self) -> None:
        """Write the maps of all lines; raise ConfigError if all are blank."""
        if not self.maps:
            raise ConfigError(f"--attention {self.path}: every line is blank")
        if self.path.suffix == ".json":
            write_json(self.path, [_numbers(*each) for each in self.maps])
        else:
            sentences = [map_values(f"line {number}", one) for number, one in self.maps]
            write_text(self.path, render("attention.html", title="Attention", sentences=sentences))
        log.info("attention written to %s", self.path)


def _numbers(line: int, one: AttentionMaps) -> dict[str, Any]:
    """Return all values for a line; the weights are lists by layer, head, query and key."""
    names = ("source", "translation", "src_pieces", "tgt_pieces", "decoder_keys", "alignment")
    weights = {"encoder": one.encoder_LHSS, "decoder": one.decoder_LHTT, "cross": one.cross_LHTS}
    rounded = {name: tensor.double().round(decimals=DIGITS).tolist() for name, tensor in weights.items()}
    return {"line": line, **{name: getattr(one, name) for name in names}, **rounded}
