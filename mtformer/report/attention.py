"""Attention weights of sentences, as heat maps in the run report, or in a file of numbers or heat maps.

L layers, H heads, S source tokens, T target tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class ChosenSentence(NamedTuple):
    """A sentence for which a report shows attention maps."""

    label: str
    source: str
    tgt_lang: str | None
    """Target language; None: that of the model."""


def page_maps(run: RunContents, sentences: dict[str, list[Sentence]], max_weights: int) -> list[dict[str, Any]]:
    """Return attention maps of a run: those of one sentence, and of more sentences up to a number of weights.

    Args:
        run: the run.
        sentences: the sentences of each test set, worst first; see `choose`.
        max_weights: maximum number of weights in all maps, except those of the first sentence.
    """
    chosen_sentences = choose(sentences, run)
    has_weights = bool(run.run.steps()) or run.run.is_bundle
    if not chosen_sentences or run.config is None or not has_weights:
        return []

    translator = Translator.load(run.run.path, device="cpu")
    num_weights = 0
    sentence_maps: list[dict[str, Any]] = []
    for sentence in chosen_sentences:
        maps = attention_maps(translator.into(sentence.tgt_lang), sentence.source)
        num_weights += _num_weights(maps)
        if sentence_maps and num_weights > max_weights:
            break
        sentence_maps.append(map_values(sentence.label, maps))
    return sentence_maps


def _num_weights(maps: AttentionMaps) -> int:
    """Return the number of weights in all maps of a sentence."""
    return maps.encoder_LHSS.numel() + maps.decoder_LHTT.numel() + maps.cross_LHTS.numel()


def choose(sentences: dict[str, list[Sentence]], run: RunContents) -> list[ChosenSentence]:
    """Return short sentences of the first test set that has any, from best to worst; otherwise, short dev samples.

    Args:
        sentences: the sentences of each test set, worst first.
        run: their run; dev samples are chosen only if it has a single target language, as they do not record theirs.
    """
    for test_name, worst_first in sentences.items():
        short_sentences = [sentence for sentence in worst_first if _is_short(sentence.source)]
        if short_sentences:
            best_first = short_sentences[::-1]
            chosen = choose_evenly(best_first, MAX_SENTENCES)
            return [_chosen_from(test_name, sentence) for sentence in chosen]

    has_several_targets = run.config is not None and len(run.config.data.target_languages) > 1
    if not run.samples or has_several_targets:
        return []
    last_samples = run.samples[-1]["samples"]
    short_sources = [source for source, _, _ in last_samples if _is_short(source)]
    return [ChosenSentence("dev", source, None) for source in short_sources[:MAX_SENTENCES]]


def _chosen_from(test_name: str, sentence: Sentence) -> ChosenSentence:
    """Return a sentence of a test set with its label."""
    label = f"{test_name}, chrF2++ {sentence.chrf:.1f}"
    return ChosenSentence(label, sentence.source, sentence.tgt_lang)


def _is_short(source: str) -> bool:
    """Return True for a sentence that is not blank, and short enough for maps."""
    num_words = len(source.split())
    return 0 < num_words <= MAX_WORDS


def map_values(label: str, maps: AttentionMaps) -> dict[str, Any]:
    """Return the maps of a sentence for `attention.html`."""
    maps_by_kind = {
        "cross": _map_of_kind(maps.tgt_pieces, maps.src_pieces, maps.cross_LHTS),
        "encoder": _map_of_kind(maps.src_pieces, maps.src_pieces, maps.encoder_LHSS),
        "decoder": _map_of_kind(maps.tgt_pieces, maps.decoder_keys, maps.decoder_LHTT),
    }
    num_layers = len(maps.cross_LHTS)
    return {
        "label": label,
        "source": maps.source,
        "translation": maps.translation,
        "maps": maps_by_kind,
        "layer": alignment_layer(num_layers),
    }


def _map_of_kind(queries: Sequence[str], keys: Sequence[str], weights: Tensor) -> dict[str, Any]:
    """Return the map of one kind of attention.

    Args:
        queries: a piece for each row of the map.
        keys: a piece for each column.
        weights: (layers, heads, queries, keys). The template gets whole percentages by layer, head and cell.
    """
    cell_weights = weights.flatten(2)
    percentages = (100 * cell_weights).round().int()
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
        """Compute the maps of a line, unless it is blank; raise ConfigError for too many lines.

        Args:
            translator: see `attention_maps`.
            number: line number, starting at 1.
            source: the line.
            translation: its translation, see `attention_maps`.
        """
        if not source.strip():
            return
        max_lines = MAX_LINES[self.path.suffix]
        if len(self.maps) == max_lines:
            problem = f"more than {max_lines:,} non-blank lines"
            raise ConfigError(f"--attention {self.path}: {problem}; translate fewer lines, or write .json")
        self.maps.append((number, attention_maps(translator, source, translation)))

    def write(self) -> None:
        """Write the maps of all lines; raise ConfigError if all are blank."""
        if not self.maps:
            raise ConfigError(
                f"--attention {self.path}: every line is blank, so there is no attention; give lines with text"
            )
        if self.path.suffix == ".json":
            records = [_record(line, maps) for line, maps in self.maps]
            write_json(self.path, records)
        else:
            sentences = [map_values(f"line {line}", maps) for line, maps in self.maps]
            page = render("attention.html", title="Attention", sentences=sentences)
            write_text(self.path, page)
        log.info("attention written to %s", self.path)


def _record(line: int, maps: AttentionMaps) -> dict[str, Any]:
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
