"""Text in, text out: as many lines as came in, in their order.

B sentences, S source length.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.batching import plan_batches
from mtformer.decoding.search import Hypothesis, Limits, beam_search, greedy
from mtformer.decoding.weights import find_weights
from mtformer.errors import ConfigError, DeviceError
from mtformer.model.hardware import DTYPES, keep_freed_memory, pick_device, pick_precision
from mtformer.model.transformer import Transformer
from mtformer.rundir import RunDir
from mtformer.text.tokenizer import EOS, PAD, TokenizerPair
from mtformer.weights import load_weights

# Whatever some program takes for the end of a line, and NUL: inside a line each is a space.
LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Translation:
    """One line of output.

    `tokens` are ids without eos. `score` is log-probability / length^alpha; that of a blank line is 0.
    """

    text: str
    score: float
    tokens: list[int]


class Translator:
    """A model with its tokenizers, for use from Python, from the command line, and in validation.

    Args:
        model: on its device, in its precision. It may be in training: it is put back as it was.
        tokenizers: those that it was trained with.
        decoding: what holds when `translate` is not told otherwise.
        weights: the file that the weights are from, for reports.
    """

    def __init__(
        self, model: Transformer, tokenizers: TokenizerPair, decoding: DecodingConfig, weights: Path | None = None
    ) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.weights = weights

    @classmethod
    def load(
        cls, run_path: str | Path, checkpoint: str | None = None, device: str = "auto", precision: str = "fp32"
    ) -> "Translator":
        """Loads a run directory or a bundle.

        Args:
            run_path: the folder.
            checkpoint: see `find_weights`.
            device: `auto` (CUDA when there is one), `cpu` or `cuda`.
            precision: `fp32`, in which a translation does not depend on the batch it is in; `bf16`, `fp16`, or `auto`
                (what the device multiplies fastest).

        Raises:
            CheckpointError, ConfigError, DeviceError: when the run, its weights or the device are not as they should.
        """
        run = RunDir.open(run_path)
        where = pick_device(device)
        if where.type == "cpu":
            keep_freed_memory()
        config = load_config(run.config).config
        tokenizers = TokenizerPair.load(run.tokenizer)
        weights = find_weights(run, checkpoint, config.training.best_metric)
        model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        load_weights(model, weights)
        model.to(device=where, dtype=DTYPES[pick_precision(precision, where)]).eval()
        return cls(model, tokenizers, config.decoding, weights)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length_ratio: float | None = None,
        min_length_ratio: float | None = None,
        batch_tokens: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Translation]:
        """Translates lines; a blank one stays blank, and what is not given is as in the run's `decoding` section.

        A line of more tokens than the model has positions for is cut, and a warning counts such lines.

        Args:
            progress: called with the number of lines that were done since its last call.
        """
        settings = override(
            self.decoding,
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_length_ratio=max_length_ratio,
            min_length_ratio=min_length_ratio,
            batch_tokens=batch_tokens,
        )
        report = progress or (lambda count: None)
        sources = self._encode(lines)
        translations = [Translation("", 0.0, []) for _ in lines]
        filled = [i for i, ids in enumerate(sources) if ids]
        report(len(lines) - len(filled))
        was_training = self.model.training
        self.model.eval()
        try:
            for batch in plan_batches([len(sources[i]) for i in filled], settings.batch_tokens, settings.beam_size):
                numbers = [filled[i] for i in batch]
                hypotheses = self._search([sources[i] for i in numbers], settings)
                for i, translation in zip(numbers, self._decode(hypotheses), strict=True):
                    translations[i] = translation
                report(len(numbers))
        finally:
            self.model.train(was_training)
        return translations

    def _encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids with eos; an empty list for a blank line."""
        room = self.model.config.max_positions - 1
        cleaned = [_one_line(line.encode("utf-8", "replace").decode("utf-8")) for line in lines]
        encoded = self.tokenizers.src.encode(cleaned)
        num_long = sum(len(ids) > room for ids in encoded)
        if num_long:
            log.warning("%d of %d lines cut to %d tokens (model.max_positions, less eos)", num_long, len(lines), room)
        return [[*ids[:room], EOS] if ids else [] for ids in encoded]

    def _search(self, sources: list[list[int]], settings: DecodingConfig) -> list[Hypothesis]:
        """The best hypothesis of each; when the GPU's memory does not suffice, half of them at a time."""
        try:
            return self._search_batch(sources, settings)
        except torch.OutOfMemoryError:
            if len(sources) == 1:
                message = "out of memory on one sentence; use a smaller beam_size or max_length_ratio, or device cpu"
                raise DeviceError(message) from None
        torch.cuda.empty_cache()
        half = len(sources) // 2
        log.warning("out of memory with %d sentences; going on with %d", len(sources), half)
        return self._search(sources[:half], settings) + self._search(sources[half:], settings)

    def _search_batch(self, sources: list[list[int]], settings: DecodingConfig) -> list[Hypothesis]:
        lengths = [len(ids) for ids in sources]
        rows = [ids + [PAD] * (max(lengths) - len(ids)) for ids in sources]
        device = self.model.output.device
        src_BS, src_lengths_B = torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
        limits = Limits(settings.max_length_ratio, settings.min_length_ratio, self.model.config.max_positions - 1)
        alpha = settings.length_penalty
        if settings.beam_size == 1:
            return greedy(self.model, src_BS, src_lengths_B, limits, alpha)
        n_bests = beam_search(self.model, src_BS, src_lengths_B, settings.beam_size, alpha, limits)
        return [n_best[0] for n_best in n_bests]

    def _decode(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = self.tokenizers.tgt.decode([hypothesis.tokens for hypothesis in hypotheses])
        return [Translation(_one_line(text), h.score, h.tokens) for text, h in zip(texts, hypotheses, strict=True)]


def override(decoding: DecodingConfig, **values: Any) -> DecodingConfig:
    """The section with other values, checked; None leaves one as it is. Raises ConfigError, one line."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return DecodingConfig.model_validate({**decoding.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # of two values that do not go together
            raise ConfigError(f"decoding: {first['ctx']['error']}") from error
        raise ConfigError(f"decoding.{first['loc'][0]}: {first['msg']}, not {first['input']!r}") from error


def _one_line(text: str) -> str:
    return LINE_BREAKS.sub(" ", text)
