"""Segments, the texts that are searched for: lines, or the sentences of lines that are too long."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mtformer.decoding.constraints import Phrase
from mtformer.decoding.inputs import Line, one_line
from mtformer.decoding.sentences import join_lines, split_line
from mtformer.text.tokenizer import EOS, Tokenizer, TokenizerPair


@dataclass(frozen=True)
class Segment:
    """A line, or a part of one that was too long.

    Args:
        source: ids, eos last.
        line: the number of its line in the user's input; samples depend on it.
        prefix, prefix_pieces: ids and pieces that its translation begins with.
        required: ids of phrases that its translation must contain.
        watch: called at each step of our own search with the ids of the best hypothesis so far, from the thread that
            searches.
        text: the source text.
        continues_word: whether there is no space between it and the segment before it.
    """

    source: Sequence[int]
    line: int = 0
    prefix: Sequence[int] = ()
    prefix_pieces: Sequence[str] = ()
    required: Sequence[Phrase] = ()
    watch: Callable[[list[int]], object] | None = None
    text: str = ""
    continues_word: bool = False


def make_segments(
    lines: Sequence[Line],
    tokenizers: TokenizerPair,
    wanted: int,
    most: int,
    first_line: int,
    watch: Iterable[Callable[[str], object] | None],
) -> list[Segment]:
    """Return the segments of all lines: none of a blank line, several of one that is too long.

    For `wanted` and `most` see `split_line`, for `first_line` and `watch` see `Translator.translate`.
    """

    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizers.src.encode(texts)]

    segments = []
    encoded = tokenizers.src.encode([line.text for line in lines])
    for number, (line, ids, report) in enumerate(zip(lines, encoded, watch, strict=True), start=first_line):
        texts, sources, shown = [line.text], [ids], list[str]()
        if len(ids) > wanted:
            texts = split_line(line.text, num_tokens, wanted, most)
            sources = tokenizers.src.encode(texts)
        prefix, prefix_pieces = line.prefix_ids, tokenizers.tgt.pieces(line.prefix) if line.prefix else []
        # Which segment a phrase belongs to is not known; the phrases of a line that is split are only checked.
        required = line.required_ids if len(texts) == 1 else []
        before = " "
        for text, source in zip(texts, sources, strict=True):
            if source:
                segments.append(
                    Segment(
                        source=[*source, EOS],
                        line=number,
                        prefix=prefix,
                        prefix_pieces=prefix_pieces,
                        required=required,
                        watch=report and _watch_segment(report, shown, tokenizers.tgt),
                        text=text,
                        continues_word=not (before[-1].isspace() or text[0].isspace()),
                    )
                )
                prefix, prefix_pieces = [], []  # only the first segment begins with it
            before = text
    return segments


def _watch_segment(
    report: Callable[[str], object], shown: list[str], tokenizer: Tokenizer
) -> Callable[[list[int]], None]:
    """Return the watcher of a line's next segment; it reports `shown`, the texts of all segments so far."""
    index = len(shown)
    shown.append("")

    def on_step(tokens: list[int]) -> None:
        shown[index] = one_line(tokenizer.decode([tokens])[0])
        report(join_lines(shown))

    return on_step
