"""Decoding backend that runs models converted by `mtformer.decoding.ctranslate2.conversion` in CTranslate2.

B sentences, S source length, T target length.
"""

import importlib
import itertools
import re
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.config.section import CTRANSLATE2
from mtformer.config.support import require_backend
from mtformer.decoding.search.candidates import Hypothesis, to_hypothesis
from mtformer.decoding.search.engine import MAX_WORKERS, Batches, Engine, NBests
from mtformer.decoding.search.rules import LengthBounds
from mtformer.decoding.search.segments import Segment
from mtformer.errors import CheckpointError, ConfigError, DeviceError
from mtformer.files import CHECKSUMS, read_meta, unchanged, verify
from mtformer.run_dir import CT2_VOCABULARY_MAP, CT2_WEIGHTS
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

PRECISIONS = {None: "default", "auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
"""The library's name of each precision."""
BATCHES_AHEAD = 2 * MAX_WORKERS  # maximum number of batches queued for the workers
BATCH_TOKENS = 512
"""Batch size of a worker: source tokens, including padding, times the number of beams; 1024 takes 10 % longer."""
SCORED_TOKENS = 2048  # source tokens, including padding, in a batch of `score`
READ_BY_LIBRARY = re.compile(
    rf"{re.escape(CT2_WEIGHTS)}|config\.json|\w*vocabulary\.\w+|{re.escape(CT2_VOCABULARY_MAP)}"
)
"""Names of the files of a converted model that the library opens itself."""
OPTIONS = {"batch_type": "tokens", "max_input_length": 0}
"""Options of all calls: batch sizes are in tokens, and the library does not cut sources."""
PATIENCE = {"auto": 2, "ended": 1}
"""The library's `patience` for each supported value of `early_stopping`: a search stops when this factor times
`beam_size` hypotheses are finished."""
NO_PENALTY = 1e-9
"""Used instead of a length penalty of 0, for which the library has another stopping rule; float32 scores are equal."""


def import_ctranslate2() -> ModuleType:
    """Return the `ctranslate2` module; raise ConfigError if it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise ConfigError("CTranslate2 is not installed; pip install 'mtformer[ctranslate2]'") from error


def open_model(
    folder: Path, tokenizers: TokenizerPair, max_positions: int, device: str, precision: str | None
) -> "CTranslate2Engine":
    """Load a converted model; `max_positions` is the maximum length of source and target, including eos.

    Devices are `auto` (CUDA if the library finds a device), `cpu` and `cuda`. Precisions are `fp32`, `bf16`, `fp16`,
    `int8`, and `auto` (the fastest); None: that of the stored weights, or the closest one that the device supports.
    Raise CheckpointError if the model is missing or damaged, DeviceError for a wrong device or precision.
    """
    library = import_ctranslate2()
    devices = ["cuda", "cpu"] if library.get_cuda_device_count() > 0 else ["cpu"]
    if device not in ("auto", *devices):
        raise DeviceError(f"device '{device}': CTranslate2 finds no such device; use {', '.join(['auto', *devices])}")
    device = devices[0] if device == "auto" else device
    supported = {"default", "auto", *library.get_supported_compute_types(device)}
    usable = {name: kind for name, kind in PRECISIONS.items() if kind in supported}
    if precision not in usable:
        names = ", ".join(filter(None, usable))
        raise DeviceError(f"precision '{precision}': CTranslate2 does not support it on {device}; use {names}")
    threads = torch.get_num_threads()
    workers = min(threads, MAX_WORKERS) if device == "cpu" else 1
    options = {"device": device, "compute_type": usable[precision], "max_queued_batches": -1}
    try:
        with _verified(folder):
            model = library.Translator(str(folder), inter_threads=workers, intra_threads=threads // workers, **options)
    except RuntimeError as error:
        raise CheckpointError(f"{folder}: cannot be loaded ({str(error).splitlines()[0]}); export it again") from error
    torch.set_num_threads(threads)  # the library changes the OpenMP setting
    return CTranslate2Engine(model, tokenizers, max_positions, (folder / CT2_VOCABULARY_MAP).is_file())


@contextmanager
def _verified(folder: Path) -> Iterator[None]:
    """Verify the files that the library reads; raise CheckpointError if one changes until the end of the context."""
    names = [name for name in read_meta(folder, CHECKSUMS)["sha256"] if READ_BY_LIBRARY.fullmatch(name)]
    with unchanged(*(folder / name for name in names)):
        verify(folder, CT2_WEIGHTS, *names, listing=CHECKSUMS)
        yield


class CTranslate2Engine(Engine):
    """Backend that uses a `ctranslate2.Translator`; its decoder starts with bos.

    In fp32 with `early_stopping: ended`, beam search returns the same translations as ours; with `auto`, it may stop
    earlier. Hypotheses have the score from the search, but no scores of individual tokens. The two searches differ as
    follows: excluded tokens (pad, bos, tags, eos below the minimum length, repeated n-grams) are removed before the
    softmax, which increases the probability of all others; the repetition penalty applies to logits instead of
    log-probabilities; the first step after a prefix drops all but one of the beams that would end there; and a beam
    that reaches the maximum length does not replace one that ended a step earlier.

    With a vocabulary map, the search chooses among the candidates for all source pieces of its batch.
    """

    max_batch_tokens = 4 * BATCH_TOKENS

    def __init__(
        self, translator: Any, tokenizers: TokenizerPair, max_positions: int, has_vocabulary_map: bool = False
    ) -> None:
        self.translator = translator
        self.models = []
        self.max_positions = max_positions
        self.has_vocabulary_map = has_vocabulary_map
        self.device = translator.device
        names = {kind: name for name, kind in PRECISIONS.items() if name}
        self.dtype = names.get(translator.compute_type, translator.compute_type)
        self.src_pieces, self.tgt_pieces = tokenizers.src.vocabulary(), tokenizers.tgt.vocabulary()
        self.tgt_ids = {piece: number for number, piece in enumerate(self.tgt_pieces)}

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if CTranslate2 does not support a setting or a constraint."""
        require_backend(settings, CTRANSLATE2)
        if required:
            raise unsupported("required phrases")

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch; the library searches later batches while the caller processes one."""
        remaining = (self._start(batch, settings) for batch in batches)
        started = deque(itertools.islice(remaining, BATCHES_AHEAD))
        while started:
            started.extend(itertools.islice(remaining, 1))
            yield self._finish(started.popleft(), settings)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each target, including its eos."""
        results = self.translator.score_batch(*self._pieces(sources, targets), max_batch_size=SCORED_TOKENS, **OPTIONS)
        return [list(result.log_probs) for result in results]

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU."""
        results = self.translator.translate_batch(
            *self._pieces(sources, targets),
            beam_size=1,
            max_decoding_length=max(map(len, targets)) + 1,
            min_decoding_length=0,
            max_batch_size=BATCH_TOKENS,
            return_attention=True,
            return_end_token=True,
            **OPTIONS,
        )
        start = len(self.target.tags)
        return [
            torch.tensor(result.attention[0])[: len(target), start : start + len(source) - 1]
            for result, source, target in zip(results, sources, targets, strict=True)
        ]

    def _start(self, batch: Sequence[Segment], settings: DecodingConfig) -> "list[_Search]":
        """Start the search of a batch.

        A library call has a single maximum length. It affects only searches that reach it, so all sentences use the
        largest maximum, and `_finish` repeats the search for the few that reach their own maximum.
        """
        lengths_B = torch.tensor([len(self.target.tags) + len(segment.source) for segment in batch])
        bounds = LengthBounds(settings, lengths_B, [len(segment.prefix) for segment in batch], self.max_positions - 1)
        searches = list(map(_Search, batch, bounds.min_B.tolist(), bounds.max_B.tolist()))
        self._translate(searches, settings, bounds.max_steps - 1)
        return searches

    def _finish(self, searches: "Sequence[_Search]", settings: DecodingConfig) -> NBests:
        """Wait for the results of a batch and return them.

        The library's scores omit the prefix, and eos if a hypothesis is truncated. Such hypotheses are rescored.
        """
        found = [one.hypotheses(self.tgt_ids, settings) for one in searches]
        again = [number for number, n_best in enumerate(found) if any(one.at_limit for one in n_best)]
        self._translate([searches[number] for number in again], settings)
        for number in again:
            found[number] = searches[number].hypotheses(self.tgt_ids, settings)
        unscored = [number for number, one in enumerate(searches) if one.segment.prefix or number in again]
        pairs = [(searches[number].segment.source, one.tokens) for number in unscored for one in found[number]]
        scores = iter(self.score(*zip(*pairs, strict=True)) if pairs else [])
        for number in unscored:
            rescored = [
                replace(to_hypothesis(one.tokens, next(scores), settings.length_penalty), at_limit=one.at_limit)
                for one in found[number]
            ]
            found[number] = sorted(rescored, key=lambda one: -one.score)[: settings.beam_size]
        return found

    def _translate(self, searches: "Sequence[_Search]", settings: DecodingConfig, longest: int | None = None) -> None:
        """Start searches with one call per combination of bounds, separately for segments with and without a prefix.

        A prefix changes the library's first free step for all sentences of the call. `longest` is a maximum length that
        few hypotheses reach; None: that of each search, which is known to truncate hypotheses.
        """
        groups: dict[tuple[int, int, bool], list[_Search]] = defaultdict(list)
        for one in searches:
            groups[one.shortest, longest or one.longest, bool(one.segment.prefix)].append(one)
        for (shortest, bound, has_prefix), some in groups.items():
            patience = PATIENCE[settings.early_stopping] if settings.beam_size > 1 else 1
            num_hypotheses = settings.beam_size
            if longest is None:
                # The limit truncates hypotheses; request twice as many, because truncated ones are returned too.
                patience = 2
                num_hypotheses = 2 * settings.beam_size
            futures = self.translator.translate_batch(
                *self._pieces([one.segment.source for one in some], [one.segment.prefix for one in some]),
                beam_size=settings.beam_size,
                use_vmap=self.has_vocabulary_map and not has_prefix,  # with both, the library raises IndexError
                patience=patience,
                num_hypotheses=num_hypotheses,
                length_penalty=max(settings.length_penalty, NO_PENALTY),
                repetition_penalty=settings.repetition_penalty,
                no_repeat_ngram_size=settings.no_repeat_ngram_size,
                suppress_sequences=[[self.tgt_pieces[number]] for number in (PAD, BOS, *self.target.excluded)],
                max_decoding_length=bound,
                min_decoding_length=shortest,
                max_batch_size=max(1, BATCH_TOKENS // settings.beam_size),
                return_scores=True,
                return_end_token=True,
                asynchronous=True,
                **OPTIONS,
            )
            for one, future in zip(some, futures, strict=True):
                one.future = future

    def _pieces(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Iterator[list[list[str]]]:
        """Yield the pieces of sources, without eos, which the converted model adds, and of targets."""
        yield [[self.src_pieces[token] for token in (*self.target.tags, *source[:-1])] for source in sources]
        yield [[self.tgt_pieces[token] for token in target] for target in targets]


@dataclass
class _Search:
    """Search for the translation of one segment; lengths are in tokens without eos."""

    segment: Segment
    shortest: int
    longest: int
    future: Any = None

    def hypotheses(self, ids_of: Mapping[str, int], settings: DecodingConfig) -> list[Hypothesis]:
        """Wait for the result and return distinct hypotheses, without truncated ones if enough others have ended.

        Beams that remain empty after a prefix are duplicates or contain pad.
        """
        try:
            result = self.future.result()
        except RuntimeError as error:  # such as a missing CUDA library
            raise DeviceError(f"CTranslate2: {error}; use another device, or --backend mtformer") from error
        found: dict[tuple[int, ...], Hypothesis] = {}
        ended = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [ids_of[piece] for piece in pieces]
            has_ended = ids[-1:] == [EOS]
            tokens = ids[:-1] if has_ended else ids
            if PAD not in tokens and tuple(tokens) not in found:
                log_probability = score * max(1, len(ids)) ** settings.length_penalty
                one = Hypothesis(tokens, score, log_probability, [], len(tokens) >= self.longest)
                found[tuple(tokens)] = one
                ended += [one] if has_ended else []
        return ended if len(ended) >= settings.beam_size else list(found.values())


def unsupported(what: str) -> ConfigError:
    """Return the error for a setting that CTranslate2 does not support."""
    return ConfigError(f"{what}: not supported by CTranslate2; leave it out, or use --backend mtformer")
