"""From lines to tokenised pairs: what the filters keep, with a count of all."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mtformer.data.filters import KEPT, REASONS, Codes, Filter
from mtformer.data.ragged import Ragged, bytes_of
from mtformer.data.report import DataReport, Pair, sides
from mtformer.data.store import Pairs
from mtformer.text.tokenizer import UNK, TokenizerPair

SMALL_VOCABULARY = 1 << 16
"""Up to this many pieces an id takes two bytes."""


def tokenise(
    lines: Sequence[Pair], filter_: Filter, tokenizers: TokenizerPair, *, keep_text: bool, num_threads: int = 1
) -> tuple[Pairs, list[Pair], DataReport]:
    """Filters and tokenises some pairs.

    Returns:
        the pairs that are kept; their lines; a report, to which `count_tokens` adds what is counted of kept pairs once
        duplicates are out of them.
    """
    report = DataReport(read=len(lines))
    texts = sides(lines)
    report.count_unusual(*texts)
    codes = filter_.by_text(lines)
    _leave_out(report, codes)
    kept = list(lines)
    if codes.any():
        kept = [pair for pair, code in zip(lines, codes.tolist(), strict=True) if code == KEPT]
        texts = sides(kept)
    src, tgt = (
        Ragged.of(
            tokenizer.encode(text, num_threads),
            np.uint16 if tokenizer.vocab_size <= SMALL_VOCABULARY else np.int32,
        )
        for tokenizer, text in zip((tokenizers.src, tokenizers.tgt), texts, strict=True)
    )
    pairs = Pairs(src, tgt, *(bytes_of(text) for text in texts)) if keep_text else Pairs(src, tgt)
    codes = filter_.by_length(src.lengths_B, tgt.lengths_B)
    _leave_out(report, codes)
    if codes.any():
        chosen = np.flatnonzero(codes == KEPT)
        pairs, kept = pairs.take(chosen), [kept[index] for index in chosen.tolist()]
    if filter_.config is None:
        report.blank = {"src": int((src.lengths_B == 0).sum()), "tgt": int((tgt.lengths_B == 0).sum())}
    return pairs, kept, report


def count_tokens(report: DataReport, pairs: Pairs) -> DataReport:
    """The report with what is counted of the pairs that are kept in the end."""
    columns = {"src": pairs.src, "tgt": pairs.tgt}
    return replace(
        report,
        kept=len(pairs),
        tokens={name: len(side.ids_N) for name, side in columns.items()},
        unknown={name: int((side.ids_N == UNK).sum()) for name, side in columns.items()},
    )


def _leave_out(report: DataReport, codes: Codes) -> None:
    counts = np.bincount(codes, minlength=1 + len(REASONS))
    for reason, count in zip(REASONS, counts[1:].tolist(), strict=True):
        report.leave_out(reason, count)
