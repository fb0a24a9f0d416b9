"""From lines to tokenised pairs: what the filters keep, with a count of all."""

from dataclasses import replace
from itertools import compress

import numpy as np

from mtformer.data.filters import KEPT, REASONS, Codes, Filter
from mtformer.data.ragged import Ragged, bytes_of
from mtformer.data.report import DataReport, Sides
from mtformer.data.store import Pairs
from mtformer.text.tokenizer import UNK, TokenizerPair

SMALL_VOCABULARY = 1 << 16
"""Up to this many pieces an id takes two bytes."""


def tokenise(
    texts: Sides, filter_: Filter, tokenizers: TokenizerPair, *, keep_text: bool, num_threads: int = 1
) -> tuple[Pairs, Sides, DataReport]:
    """Filters and tokenises some pairs.

    Returns:
        the pairs that are kept; their lines; a report, to which `count_tokens` adds what is counted of kept pairs once
        duplicates are out of them.
    """
    report = DataReport(read=len(texts[0]))
    report.count_unusual(*texts)
    if filter_.config is not None:
        codes = filter_.by_text(list(zip(*texts, strict=True)))
        _leave_out(report, codes)
        texts = _kept(texts, codes)
    src, tgt = (
        Ragged.of(
            tokenizer.encode(text, num_threads),
            np.uint16 if tokenizer.vocab_size <= SMALL_VOCABULARY else np.int32,
        )
        for tokenizer, text in zip((tokenizers.src, tokenizers.tgt), texts, strict=True)
    )
    pairs = Pairs(src, tgt, *(bytes_of(text) for text in texts)) if keep_text else Pairs(src, tgt)
    if filter_.config is not None:
        codes = filter_.by_length(src.lengths_B, tgt.lengths_B)
        _leave_out(report, codes)
        if codes.any():
            pairs, texts = pairs.take(np.flatnonzero(codes == KEPT)), _kept(texts, codes)
    else:
        report.blank = {"src": int((src.lengths_B == 0).sum()), "tgt": int((tgt.lengths_B == 0).sum())}
    return pairs, texts, report


def _kept(texts: Sides, codes: Codes) -> Sides:
    if not codes.any():
        return texts
    is_kept = (codes == KEPT).tolist()
    return list(compress(texts[0], is_kept)), list(compress(texts[1], is_kept))


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
