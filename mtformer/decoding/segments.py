"""Segments, the texts that are searched for: lines, or the sentences of lines that are too long."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mtformer.decoding.engine import Request
from mtformer.decoding.inputs import Inputs, one_line
from mtformer.decoding.sentences import join_lines, split_line
from mtformer.text.tokenizer import EOS, Tokenizer, TokenizerPair


@dataclass(frozen=True)
class Segment:
    """A line, or a part of one that was too long.

    Args:
        line: its number in the call.
        text: the source text.
        request: for the search.
        prefix: pieces that its translation begins with.
        continues_word: whether there is no space between it and the segment before it.
    """

    line: int
    text: str
    request: Request
    prefix: Sequence[str] = ()
    continues_word: bool = False


def make_segments(inputs: Inputs, tokenizers: TokenizerPair, wanted: int, most: int) -> list[Segment]:
    """Return the segments of all lines: none of a blank line, several of one that is too long.

    Args:
        inputs: the lines.
        tokenizers: the model's.
        wanted, most: tokens of a source, see `split_line`.
    """

    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizers.src.encode(texts)]

    prefixes = [_encode_prefix(prefix, tokenizers.tgt) for prefix in inputs.prefixes]
    segments = []
    for number, (line, ids) in enumerate(zip(inputs.lines, tokenizers.src.encode(inputs.lines), strict=True)):
        texts, sources = [line], [ids]
        if len(ids) > wanted:
            texts = split_line(line, num_tokens, wanted, most)
            sources = tokenizers.src.encode(texts)
        # Which segment a phrase belongs to is not known; the phrases of a line that is split are only checked.
        required = inputs.required_ids[number] if len(texts) == 1 else ()
        prefix_ids, prefix = prefixes[number]
        before = " "
        for text, source in zip(texts, sources, strict=True):
            if source:
                request = Request([*source, EOS], inputs.first_line + number, prefix_ids, required)
                continues_word = not (before[-1].isspace() or text[0].isspace())
                segments.append(Segment(number, text, request, prefix, continues_word))
                prefix_ids, prefix = [], []  # only the first segment begins with it
            before = text
    return segments


def _encode_prefix(prefix: str, tokenizer: Tokenizer) -> tuple[list[int], list[str]]:
    return (tokenizer.encode([prefix])[0], tokenizer.pieces(prefix)) if prefix else ([], [])


def watched(
    segments: Sequence[Segment], watch: Sequence[Callable[[str], object] | None], tokenizer: Tokenizer
) -> list[Segment]:
    """Return the segments with a watcher in each request, which calls the line's with all that the line has so far."""
    so_far: dict[int, list[str]] = {}

    def with_watch(segment: Segment) -> Segment:
        report = watch[segment.line]
        if report is None:
            return segment
        texts = so_far.setdefault(segment.line, [])
        index = len(texts)
        texts.append("")

        def on_step(tokens: list[int]) -> None:
            texts[index] = one_line(tokenizer.decode([tokens])[0])
            report(join_lines(texts))

        return replace(segment, request=replace(segment.request, watch=on_step))

    return [with_watch(segment) for segment in segments]
