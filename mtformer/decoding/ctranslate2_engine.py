"""Search by the library CTranslate2, on a folder that `mtformer export --format ctranslate2` wrote.

B sentences, S source length, T target length.
"""

import copy
import importlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.engine import Request
from mtformer.decoding.rules import Limits
from mtformer.decoding.search import Hypothesis
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError, DeviceError
from mtformer.rundir import CHECKSUMS, CT2_WEIGHTS, RunDir, verify
from mtformer.text.tags import Target
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

COMPUTE_TYPES = {
    None: "default",
    "auto": "auto",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
}
MOST_WORKERS = 4
SCORED_TOKENS = 2048
"""Source tokens, padding counted, of the translations whose probabilities are computed together."""
NO_PENALTY = 1e-9
"""With a length penalty of 0 the library stops by another rule; this one is 0 to all figures of a float."""


def import_ctranslate2() -> ModuleType:
    """The library; raises ConfigError when it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise ConfigError("CTranslate2 is not installed; pip install 'mtformer[ctranslate2]'") from error


def load_exported(path: str | Path, device: str = "auto", precision: str | None = None) -> Translator:
    """A translator over an exported folder.

    Args:
        path: what `mtformer export --format ctranslate2` wrote.
        device: `auto` (CUDA when the library sees a device), `cpu` or `cuda`.
        precision: `fp32`, `bf16`, `fp16`, `int8`, or `auto` (what the device computes fastest); None: as exported, or
            where the device cannot compute so, what comes nearest.

    Raises:
        CheckpointError, ConfigError, DeviceError: when the folder, the library or the device are not as they should.
    """
    library = import_ctranslate2()
    run = RunDir.open(path)
    if not library.contains_model(str(run.path)):
        raise CheckpointError(
            f"{path}: no CTranslate2 model here; `mtformer export RUN --format ctranslate2` writes one"
        )
    verify(run.path, CT2_WEIGHTS, listing=CHECKSUMS)
    config, tokenizers = load_config(run.config).config, TokenizerPair.load(run.tokenizer)
    where = _pick_device(library, device)
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS) if where == "cpu" else 1
    try:
        model = library.Translator(
            str(run.path),
            device=where,
            compute_type=_compute_type(library, precision, where),
            inter_threads=workers,
            intra_threads=threads // workers,
        )
    except RuntimeError as error:
        raise CheckpointError(f"{path}: not to be loaded ({str(error).splitlines()[0]}); export it anew") from error
    torch.set_num_threads(threads)  # of OpenMP, which the library has set to its own
    engine = CTranslate2Engine(model, tokenizers, config.model.max_positions)
    trained_tokens = config.data.filters.max_tokens
    return Translator(engine, tokenizers, config.decoding, trained_tokens, [run.path / CT2_WEIGHTS], config.data)


def _pick_device(library: ModuleType, name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device '{name}': no such device; use auto, cpu or cuda")
    has_cuda = library.get_cuda_device_count() > 0
    if name == "cuda" and not has_cuda:
        raise DeviceError("device 'cuda': CTranslate2 sees no CUDA device here; use device cpu or auto")
    return ("cuda" if has_cuda else "cpu") if name == "auto" else name


def _compute_type(library: ModuleType, precision: str | None, device: str) -> str:
    if precision not in COMPUTE_TYPES:
        names = ", ".join(filter(None, COMPUTE_TYPES))
        raise DeviceError(f"precision '{precision}': no such precision; use {names}")
    wanted = COMPUTE_TYPES[precision]
    there = {"default", "auto", *library.get_supported_compute_types(device)}
    if wanted not in there:
        names = ", ".join(name for name, kind in COMPUTE_TYPES.items() if name and kind in there)
        raise DeviceError(f"precision '{precision}': CTranslate2 does not have it on this {device}; use {names}")
    return wanted


class _Found(NamedTuple):
    """Tokens without eos; when it has not ended, they are as many as there may be."""

    tokens: list[int]
    has_ended: bool


class CTranslate2Engine:
    """`Engine` over a `ctranslate2.Translator`.

    Beam search is the same as ours, and in fp32 gives the same translations. Log-probabilities are those of a second,
    teacher-forced pass over what the search has found, because the search gives sums only. What differs from ours:
    what must not come (pad, bos, eos below the shortest length, repeated n-grams) leaves the softmax, so that the rest
    gains; the repetition penalty applies to logits, not to log-probabilities; the first step after a prefix drops all
    but one of the beams that would end there; and of beams that reach the upper limit of the length, those do not count
    that would take the place of one that ended a step before.

    Args:
        translator: the loaded model.
        tokenizers: those it was trained with.
        max_positions: of the model.
    """

    def __init__(self, translator: Any, tokenizers: TokenizerPair, max_positions: int) -> None:
        self.translator = translator
        self.max_positions = max_positions
        self.device: str = translator.device
        self.dtype: str = translator.compute_type
        self.src_pieces, self.tgt_pieces = tokenizers.src.vocabulary(), tokenizers.tgt.vocabulary()
        self.tgt_ids = {piece: number for number, piece in enumerate(self.tgt_pieces)}
        self.asked = Target()

    def asking(self, asked: Target) -> "CTranslate2Engine":
        """As in `Engine`; raises ConfigError when the language stands in the place of bos."""
        if asked.start != BOS:
            raise ConfigError("data.language_tags 'target': CTranslate2 does not have that; use the backend mtformer")
        other = copy.copy(self)
        other.asked = asked
        return other

    def search(
        self, requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None
    ) -> list[list[Hypothesis]]:
        """As in `Engine`: `n_best`, or all of the beam where their order may still change.

        Raises:
            ConfigError: a setting that CTranslate2 does not have.
        """
        _refuse_what_it_cannot(requests, settings, forbidden)
        limits = Limits.of(settings, [len(request.prefix) for request in requests], self.max_positions - 1)
        lengths_B = torch.tensor([len(self.asked.tags) + len(request.source) for request in requests])
        fewest, most = [bound_B.tolist() for bound_B in limits.bounds(lengths_B)]
        steers = settings.coverage_penalty > 0 or settings.repetition_penalty > 1 or settings.no_repeat_ngram_size > 0
        chosen = []
        for number, found in enumerate(self._search_within(requests, settings, fewest, most)):
            is_ranked = not steers and not requests[number].prefix and all(one.has_ended for one in found)
            chosen += [(number, one.tokens) for one in (found[: settings.n_best] if is_ranked else found)]
        scores = self.score([requests[number].source for number, _ in chosen], [tokens for _, tokens in chosen])
        n_bests: list[list[Hypothesis]] = [[] for _ in requests]
        for (number, tokens), each in zip(chosen, scores, strict=True):
            score = sum(each) / len(each) ** settings.length_penalty
            n_bests[number].append(Hypothesis(tokens, score, sum(each), each, len(tokens) >= most[number]))
        return [sorted(n_best, key=lambda one: -one.score)[: settings.beam_size] for n_best in n_bests]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """As in `Engine`."""
        results = self.translator.score_batch(
            self._sources(sources),
            [self._target(target) for target in targets],
            max_batch_size=SCORED_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """As in `Engine`."""
        results = self.translator.translate_batch(
            self._sources(sources),
            [self._target(target) for target in targets],
            beam_size=1,
            max_decoding_length=max(map(len, targets)) + 1,
            min_decoding_length=0,
            max_batch_size=self._share(len(sources)),
            max_input_length=0,
            return_attention=True,
            return_end_token=True,
        )
        found = []
        for result, source, target in zip(results, sources, targets, strict=True):
            # What comes after the given target does not matter. The library leaves eos out: it got the rest (to 1e-7).
            weights_TS = torch.tensor(result.attention[0])[: len(target) + 1, : len(self.asked.tags) + len(source) - 1]
            rest_T1 = (1.0 - weights_TS.sum(dim=1, keepdim=True)).clamp(min=0.0)
            found.append(torch.cat([weights_TS, rest_T1], dim=1)[:, len(self.asked.tags) :])
        return found

    def _search_within(
        self, requests: Sequence[Request], settings: DecodingConfig, fewest: Sequence[int], most: Sequence[int]
    ) -> list[list[_Found]]:
        """What the library finds, best first, with bounds that differ from sentence to sentence.

        The library has one upper bound a call. It shows only in a search that reaches it, so all go together with the
        largest, and the few that come to their own one are searched again.
        """
        found: dict[int, list[_Found]] = {}

        def search(numbers: Sequence[int], shortest: int, longest: int, is_at_limit: bool) -> None:
            some = [requests[number] for number in numbers]
            found.update(zip(numbers, self._translate(some, settings, shortest, longest, is_at_limit), strict=True))

        # A prefix changes the library's first free step for all that are searched together.
        by_shortest, at_limit = defaultdict(list), defaultdict(list)
        for number, request in enumerate(requests):
            by_shortest[fewest[number], bool(request.prefix)].append(number)
        for (shortest, has_prefix), numbers in by_shortest.items():
            search(numbers, shortest, max(most[number] for number in numbers), False)
            for number in numbers:
                if any(len(one.tokens) >= most[number] for one in found[number]):
                    at_limit[shortest, most[number], has_prefix].append(number)
        for (shortest, longest, _), numbers in at_limit.items():
            search(numbers, shortest, longest, True)
        return [found[number] for number in range(len(requests))]

    def _translate(
        self, requests: Sequence[Request], settings: DecodingConfig, shortest: int, longest: int, is_at_limit: bool
    ) -> list[list[_Found]]:
        """One search. Of sentences that reach their limit, what ended before and what is cut there: twice the beam."""
        patience = 2 if is_at_limit else 1
        results = self.translator.translate_batch(
            self._sources([request.source for request in requests]),
            [self._target(request.prefix) for request in requests],
            beam_size=settings.beam_size,
            patience=patience,
            num_hypotheses=patience * settings.beam_size,
            length_penalty=max(settings.length_penalty, NO_PENALTY),
            repetition_penalty=settings.repetition_penalty,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
            suppress_sequences=[[self.tgt_pieces[PAD]], [self.tgt_pieces[BOS]]],
            max_decoding_length=longest,
            min_decoding_length=shortest,
            max_batch_size=self._share(len(requests)),
            max_input_length=0,
            return_end_token=True,
        )
        found = [self._read(result.hypotheses) for result in results]
        # Where enough has ended, what is cut at the limit does not count.
        ended = [[one for one in of_one if one.has_ended] for of_one in found]
        return [some if len(some) >= settings.beam_size else of_one for some, of_one in zip(ended, found, strict=True)]

    def _read(self, hypotheses: Sequence[Sequence[str]]) -> list[_Found]:
        """Each translation once. Beams that a prefix leaves empty are copies, or hold pad."""
        found: dict[tuple[int, ...], _Found] = {}
        for pieces in hypotheses:
            ids = [self.tgt_ids[piece] for piece in pieces]
            has_ended = ids[-1:] == [EOS]
            tokens = ids[:-1] if has_ended else ids
            if PAD not in tokens:
                found.setdefault(tuple(tokens), _Found(tokens, has_ended))
        return list(found.values())

    def _sources(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        """As pieces, without eos, which the exported model adds."""
        return [[self.src_pieces[token] for token in (*self.asked.tags, *source[:-1])] for source in sources]

    def _target(self, tokens: Sequence[int]) -> list[str]:
        return [self.tgt_pieces[token] for token in tokens]

    def _share(self, count: int) -> int:
        """Sentences that each worker gets."""
        return -(-count // self.translator.num_translators)


def _refuse_what_it_cannot(requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None) -> None:
    cannot = {
        "sampling (one seed, one result, whatever the batches)": settings.draws,
        "beam_groups": settings.beam_groups > 1,
        "early_stopping other than ended": settings.early_stopping != "ended" and settings.beam_size > 1,
        "phrases that a translation must hold": any(request.required for request in requests),
        "phrases that no translation holds": forbidden is not None,
    }
    for what, is_asked in cannot.items():
        if is_asked:
            raise ConfigError(f"{what}: CTranslate2 does not have that; leave it out, or use the backend mtformer")
