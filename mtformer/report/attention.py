"""Attention weights of sentences, as heat maps in the run report, or in a file of numbers, heat maps or a picture.

L layers, H heads, S source tokens, T target tokens.
"""

import json
import logging
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, require_extra
from mtformer.experiment.runs import RunContents
from mtformer.files import atomic_file, write_text
from mtformer.report.sentences import Sentence, choose_evenly
from mtformer.templating import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINES = {".json": 10_000, ".html": 100, ".png": 1}
"""Maximum number of lines in a file, by its suffix."""
DIGITS = 5
MAX_WORDS = 15
"""Maximum number of words in a sentence for which maps are drawn; larger maps are hard to read."""
MAX_SENTENCES = 6
MAX_WEIGHTS = 400_000
"""Maximum number of weights in all maps of a page, about a megabyte."""
CELL = 0.22
"""Width and height of a cell of a heat map in inches."""
FONT_SIZE, DPI = 9, 120
MAX_INCHES = 50.0
"""Maximum width and height of a picture in inches (6,000 pixels)."""
FONT = "DejaVu Sans"  # included in matplotlib
BOXES = "Last Resort"
"""A font included in matplotlib that shows a box for every letter."""
log = logging.getLogger("mtformer")


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
    if not run.samples or (run.config is not None and run.config.data.both_directions):
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
        "layer": one.alignment_layer,
    }


class AttentionFile:
    """A file of attention weights: numbers (.json), a page of heat maps (.html), or a picture (.png).

    Raise MtformerError if the suffix is unknown, or matplotlib is missing for a picture.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in MAX_LINES:
            raise ConfigError(f"--attention {path}: unknown format; use .json, .html or .png")
        if path.suffix == ".png":
            require_extra("an attention picture", "report", "matplotlib")
        self.path = path
        self.maps: list[tuple[int, AttentionMaps]] = []
        """(line number, maps) of each line that was added."""

    def add(self, translator: Translator, number: int, source: str, translation: str | Translation) -> None:
        """Compute the maps of a line, counted from 1, unless it is blank; raise ConfigError for too many lines."""
        if not source.strip():
            return
        if len(self.maps) == MAX_LINES[self.path.suffix]:
            raise ConfigError(
                f"--attention {self.path}: more than {len(self.maps):,} non-blank lines; "
                "translate fewer lines, or write .json"
            )
        self.maps.append((number, attention_maps(translator, source, translation)))

    def write(self) -> None:
        """Write the maps of all lines; raise ConfigError if all are blank, or the picture cannot be drawn."""
        if not self.maps:
            raise ConfigError(f"--attention {self.path}: every line is blank")
        if self.path.suffix == ".json":
            write_text(self.path, json.dumps([_numbers(*each) for each in self.maps], ensure_ascii=False) + "\n")
        elif self.path.suffix == ".html":
            sentences = [map_values(f"line {number}", one) for number, one in self.maps]
            write_text(self.path, render("attention.html", title="Attention", sentences=sentences))
        else:
            figure = draw(self.maps[0][1])
            with warnings.catch_warnings(), atomic_file(self.path) as temporary:
                warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # one per letter and position
                figure.savefig(temporary, format="png", dpi=DPI)
        log.info("attention written to %s", self.path)


def _numbers(line: int, one: AttentionMaps) -> dict[str, Any]:
    """Return all values for a line; the weights are lists by layer, head, query and key."""
    weights = {"encoder": one.encoder_LHSS, "decoder": one.decoder_LHTT, "cross": one.cross_LHTS}
    return {
        "line": line,
        "source": one.source,
        "translation": one.translation,
        "src_pieces": one.src_pieces,
        "tgt_pieces": one.tgt_pieces,
        "decoder_keys": one.decoder_keys,
        "alignment": one.alignment,
        **{name: tensor.double().round(decimals=DIGITS).tolist() for name, tensor in weights.items()},
    }


def draw(maps: AttentionMaps) -> "Figure":
    """Draw a heat map for each head of the last decoder layer, with a row per target and a column per source token.

    Raise ConfigError if the picture would be too large.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    num_layers, num_heads = maps.cross_LHTS.shape[:2]
    num_columns = math.ceil(math.sqrt(num_heads))
    num_rows = math.ceil(num_heads / num_columns)
    longest = [max(map(len, pieces)) * FONT_SIZE / 72 * 0.65 for pieces in (maps.tgt_pieces, maps.src_pieces)]
    width = num_columns * (len(maps.src_pieces) * CELL + 0.3) + longest[0] + 0.8
    height = num_rows * (len(maps.tgt_pieces) * CELL + 0.35) + longest[1] + 0.5
    if max(width, height) > MAX_INCHES:
        raise ConfigError(f"the picture would be {width:.0f} x {height:.0f} inches; write .json or .html")
    figure = Figure(figsize=(max(width, 4.0), height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).flatten()
    fonts = _fonts("".join([*maps.src_pieces, *maps.tgt_pieces]))
    for number, weights_TS in enumerate(maps.cross_LHTS[-1]):
        image = grid[number].imshow(weights_TS.numpy(), cmap="Blues", vmin=0, vmax=1)
        grid[number].set_title(f"head {number + 1}", fontsize=FONT_SIZE + 1)
        grid[number].tick_params(length=0)
    for axes in grid[num_heads:]:
        axes.set_visible(False)
    for axes in grid[max(0, num_heads - num_columns) : num_heads]:
        axes.tick_params(labelbottom=True)  # also above a hidden map
    as_written = {"fontsize": FONT_SIZE, "fontfamily": fonts, "parse_math": False}  # show $ as it is
    for axes in grid:
        axes.set_xticks(range(len(maps.src_pieces)), maps.src_pieces, rotation=90, **as_written)
        axes.set_yticks(range(len(maps.tgt_pieces)), maps.tgt_pieces, **as_written)
    figure.colorbar(image, ax=list(grid), shrink=min(1.0, 3.0 / height), label="weight")
    figure.suptitle(f"cross-attention, layer {num_layers} of {num_layers}", fontsize=FONT_SIZE + 3)
    return figure


def _fonts(text: str) -> list[str]:
    """Return the default font and installed fonts for letters that it lacks; warn about letters without a font."""
    from matplotlib import font_manager

    fonts, missing = list[str](), list(dict.fromkeys(text))
    plain = [one for one in font_manager.fontManager.ttflist if (one.style, one.weight) == ("normal", 400)]
    others = [(one.fname, one.name) for one in plain if BOXES not in one.name]
    for file, name in [(font_manager.findfont(FONT), FONT), *others]:
        has = font_manager.get_font(file).get_charmap()
        left = [one for one in missing if ord(one) not in has]
        if len(left) < len(missing):
            fonts, missing = [*fonts, name], left
        if not missing:
            return fonts
    log.warning(
        "no installed font has %s; the picture shows boxes instead; install a font such as Noto Sans", "".join(missing)
    )
    return fonts
