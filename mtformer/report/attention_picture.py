"""Cross-attention of one sentence as a picture: a heat map for each head.

H heads, S source pieces, T target pieces.
"""

import logging
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from mtformer.decoding.attention_maps import AttentionMaps
from mtformer.errors import ConfigError
from mtformer.page import require_matplotlib
from mtformer.rundir import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 0.22
"""Inches of a weight."""
FONT_SIZE, DPI = 9, 120
MOST_INCHES = 50.0
"""Of a side: 6,000 pixels."""
FONT = "DejaVu Sans"
"""It comes with matplotlib."""
BOXES = "Last Resort"
"""So does this one, which has a box for every letter."""
log = logging.getLogger("mtformer")


def save_picture(maps: AttentionMaps, layer: int, head: int | None, path: Path) -> None:
    """Writes a PNG of all heads of a layer, or of one; what no installed font can draw is told in one line.

    Args:
        maps: of the sentence.
        layer, head: counted from 0.
        path: of the file, which is replaced.

    Raises:
        MtformerError: without matplotlib, or when the picture would be too large.
    """
    require_matplotlib("a picture of attention")
    figure = draw(maps, layer, head)
    with warnings.catch_warnings(), atomic_file(path) as temporary:
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # a line for each, and each time
        figure.savefig(temporary, format="png", dpi=DPI)


def draw(maps: AttentionMaps, layer: int, head: int | None) -> "Figure":
    """The figure; target pieces below each other, source pieces beside each other. Arguments as in `save_picture`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    heads = range(maps.cross_LHTS.size(1)) if head is None else [head]
    num_columns = math.ceil(math.sqrt(len(heads)))
    num_rows = math.ceil(len(heads) / num_columns)
    longest = [max(map(len, pieces)) * FONT_SIZE / 72 * 0.65 for pieces in (maps.tgt_pieces, maps.src_pieces)]
    width = num_columns * (len(maps.src_pieces) * CELL + 0.3) + longest[0] + 0.8
    height = num_rows * (len(maps.tgt_pieces) * CELL + 0.35) + longest[1] + 0.5
    if max(width, height) > MOST_INCHES:
        less = "choose one with --head, or " if len(heads) > 1 else ""
        raise ConfigError(f"the picture would be {width:.0f} x {height:.0f} inches; {less}write JSON (--out maps.json)")
    figure = Figure(figsize=(max(width, 4.0), height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).flatten()
    fonts = _fonts("".join([*maps.src_pieces, *maps.tgt_pieces]))
    for axes, number in zip(grid, heads, strict=False):
        image = axes.imshow(maps.cross_LHTS[layer, number].numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {number + 1}", fontsize=FONT_SIZE + 1)
        axes.tick_params(length=0)
    for axes in grid[len(heads) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(heads) - num_columns) : len(heads)]:
        axes.tick_params(labelbottom=True)  # those above an empty place too
    as_written = {"fontsize": FONT_SIZE, "fontfamily": fonts, "parse_math": False}  # a $ is a $
    for axes in grid:
        axes.set_xticks(range(len(maps.src_pieces)), maps.src_pieces, rotation=90, **as_written)
        axes.set_yticks(range(len(maps.tgt_pieces)), maps.tgt_pieces, **as_written)
    figure.colorbar(image, ax=list(grid), shrink=min(1.0, 3.0 / height), label="weight")
    figure.suptitle(f"cross-attention, layer {layer + 1} of {len(maps.cross_LHTS)}", fontsize=FONT_SIZE + 3)
    return figure


def _fonts(text: str) -> list[str]:
    """matplotlib's own font, and after it as many installed ones as the text's other letters need."""
    from matplotlib import font_manager

    def letters(path: str) -> set[int]:
        return set(font_manager.get_font(path).get_charmap())

    fonts, missing = [FONT], {ord(one) for one in text} - letters(font_manager.findfont(FONT))
    for entry in font_manager.fontManager.ttflist if missing else ():
        if (
            (entry.style, entry.weight) == ("normal", 400)
            and BOXES not in entry.name
            and missing & (has := letters(entry.fname))
        ):
            fonts.append(entry.name)
            missing -= has
        if not missing:
            break
    if missing:
        undrawn = "".join(dict.fromkeys(one for one in text if ord(one) in missing))
        log.warning(
            "no installed font draws %s: boxes in the picture; install a font that has them, such as Noto Sans",
            undrawn if len(undrawn) <= 10 else f"{undrawn[:10]}...",
        )
    return fonts
