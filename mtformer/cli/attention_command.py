"""`mtformer attention`: where a model looks, for one sentence."""

import json
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli.eval_command import CHECKPOINT_HELP, TO_HELP

if TYPE_CHECKING:
    from torch import Tensor

    from mtformer.decoding.attention_maps import AttentionMaps

LEAST_SHARE, MOST_WORDS = 0.1, 3
"""Source words shown beside the one with the most attention: those with a tenth of it or more, so many in all."""
DIGITS = 5


def attention(
    run: Annotated[Path, typer.Argument(help="Run directory or bundle.", show_default=False)],
    sentence: Annotated[str, typer.Argument(help="The source, in quotes.", show_default=False)],
    translation: Annotated[
        str | None,
        typer.Option("--translation", help="A translation of it; default: the model's own.", show_default=False),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help=TO_HELP, show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="maps.png: heat maps of the cross-attention; maps.json: all attention; default: words to stdout.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            "--layer",
            min=1,
            help="Decoder layer, from 1; default: the last, for words the one before.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=1, help="One head, from 1; default: all of them.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    checkpoint: Annotated[str | None, typer.Option(help=CHECKPOINT_HELP, show_default=False)] = None,
) -> None:
    """Show where a model looks: as words, as heat maps of every head (PNG), or as numbers (JSON).

    Words: each target word, the source word it is aligned with, and what share of its attention that one gets; behind
    them, other source words that get a tenth or more.
    """
    from mtformer.errors import ConfigError

    kind = None if out is None else out.suffix.lower()
    if kind not in (None, ".png", ".json"):
        raise ConfigError(f"--out {out}: the name of a picture ends in .png, that of a file of numbers in .json")
    if kind == ".json" and (layer or head):
        raise ConfigError("--layer and --head choose what is shown; JSON has all layers and heads, leave them out")
    if not sentence.strip():
        raise ConfigError("the sentence is blank; give one in quotes")
    if kind == ".png":
        from mtformer.report.curves import require_matplotlib

        require_matplotlib("a picture of attention")
    from mtformer.decoding.attention_maps import attention_maps
    from mtformer.decoding.translator import Translator

    maps = attention_maps(Translator.load(run, checkpoint, device).into(to), sentence, translation)
    num_layers, num_heads = maps.cross_LHTS.shape[:2]
    for name, given, most in (("layer", layer, num_layers), ("head", head, num_heads)):
        if given is not None and given > most:
            raise ConfigError(f"--{name} {given}: the decoder has {name}s 1 to {most}")
    if out is None:
        weights_HTS = maps.cross_LHTS[maps.alignment_layer if layer is None else layer - 1]
        _show(maps, weights_HTS.mean(dim=0) if head is None else weights_HTS[head - 1])
        return
    if kind == ".json":
        from mtformer.rundir import write_text

        write_text(out, json.dumps(_described(maps), ensure_ascii=False) + "\n")
    else:
        from mtformer.report.attention import save_picture

        save_picture(maps, (layer or num_layers) - 1, None if head is None else head - 1, out)
    typer.echo(f"{maps.translation}\nwritten: {out}", err=True)


def _show(maps: "AttentionMaps", weights_TS: "Tensor") -> None:
    """Prints the translation, and a line for each of its words."""
    rows = _looks(maps, weights_TS)
    if not rows:
        typer.echo("source or translation is empty: there is nothing to align", err=True)
        return
    widths = [max(map(_width, column)) for column in zip(*((tgt, looks[0][0]) for tgt, looks in rows), strict=True)]
    typer.echo(f"{maps.translation}\n")
    for tgt, [(src, share), *others] in rows:
        first = f"{_padded(tgt, widths[0])}  {_padded(src, widths[1])}  {share:4.0%}"
        typer.echo("   ".join([first, *(f"{word} {rest:.0%}" for word, rest in others)]))


def _looks(maps: "AttentionMaps", weights_TS: "Tensor") -> list[tuple[str, list[tuple[str, float]]]]:
    """Each target word with the source words that it looks at most and their shares of its attention."""
    src_words, tgt_words = _words(maps.src_pieces[maps.num_tags : -1]), _words(maps.tgt_pieces[:-1])
    weights_TS = weights_TS[:, maps.num_tags :]  # eos has its share too, but is no word to look at
    rows = []
    for text, places in tgt_words if src_words else ():
        weights_S = weights_TS[places].mean(dim=0)
        shares = [(word, weights_S[columns].sum().item()) for word, columns in src_words]
        first, *others = sorted(shares, key=lambda pair: -pair[1])[:MOST_WORDS]
        rows.append((text, [first, *(pair for pair in others if pair[1] >= LEAST_SHARE)]))
    return rows


def _words(pieces: list[str]) -> list[tuple[str, list[int]]]:
    """Each word with the places of its pieces; where the script has no spaces, each piece is one."""
    from mtformer.decoding.alignment import word_numbers
    from mtformer.decoding.long_lines import UNSPACED
    from mtformer.text.tokenizer import SPACE

    is_unspaced = UNSPACED.search("".join(pieces)) is not None
    words: dict[int, list[int]] = {}
    for place, number in enumerate(range(len(pieces)) if is_unspaced else word_numbers(pieces)):
        words.setdefault(number, []).append(place)
    texts = ["".join(pieces[place] for place in places).replace(SPACE, " ").strip() for places in words.values()]
    return [(text, places) for text, places in zip(texts, words.values(), strict=True) if text]


def _described(maps: "AttentionMaps") -> dict[str, Any]:
    """All of it: the numbers are lists by layer, head, query and key."""
    numbers = {"encoder": maps.encoder_LHSS, "decoder": maps.decoder_LHTT, "cross": maps.cross_LHTS}
    return {
        "source": maps.source,
        "translation": maps.translation,
        "src_pieces": maps.src_pieces,
        "tgt_pieces": maps.tgt_pieces,
        "decoder_keys": maps.decoder_keys,
        "alignment": maps.alignment,
        **{name: weights.double().round(decimals=DIGITS).tolist() for name, weights in numbers.items()},
    }


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns of a terminal: Chinese characters take two, accents that stand above a letter none."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)
