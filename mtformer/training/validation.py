"""Validation on dev: loss and perplexity on the references, and scores of translations."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mtformer.data.batching.batches import Batch
from mtformer.errors import InterruptedRunError, log
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training.divergence import divergence
from mtformer.training.history import append_record
from mtformer.training.ranks import Ranks
from mtformer.training.signals import StopSignal
from mtformer.training.step import TrainingStep

MAX_LOG_PERPLEXITY = 700.0
"""Largest negative log-likelihood per token for which the perplexity is a finite number."""


class Decoded(NamedTuple):
    """Scores and sample translations from decoding dev."""

    metrics: dict[str, float]
    """Scores by name, e.g. bleu and chrf."""
    samples: list[tuple[str, str, str]]
    """A few triples (source, reference, hypothesis)."""


DecodeDev = Callable[[Callable[[int], object]], Decoded]
"""Translates dev with the current model and scores it.

The argument is called after each batch with the number of finished sentences; an exception it raises ends decoding.
"""


@dataclass(frozen=True)
class DevData:
    """Dev data of a run."""

    batches: Callable[[], Iterable[Batch]]
    """Function that returns the batches for the loss."""
    decode: DecodeDev
    decode_untrained: DecodeDev | None = None
    """Like `decode`, with shorter outputs, for a perplexity above `untrained_perplexity`; None: as usual."""
    untrained_perplexity: float = math.inf
    """Perplexity above which translations are not usable, however long they are."""


@dataclass(frozen=True)
class Validator:
    """Evaluates the weights of a run on dev, and stops if a signal is received."""

    run: RunDir
    dev: DevData | None
    stop: StopSignal

    def evaluate(self, step: TrainingStep, at_step: int) -> Decoded:
        """Return all dev metrics, and sample translations; without dev data, there are none.

        Args:
            step: The model, with the weights to evaluate.
            at_step: Number of steps of the run so far.

        Raises:
            MtformerError: If the loss is not finite.
            InterruptedRunError: After SIGINT or SIGTERM.
        """
        if self.dev is None:
            return Decoded({}, [])

        def check_stop(*_: object) -> None:
            # Distributed processes synchronize during validation, so a single process cannot abandon it.
            if self.stop.received is not None and step.ranks.size == 1:
                raise InterruptedRunError(at_step, self.stop.received)

        batches = _until_stopped(self.dev.batches(), check_stop)
        metrics = self.finite_loss("dev", batches, step, at_step)
        decode = self.dev.decode
        if self.dev.decode_untrained is not None and metrics["perplexity"] > self.dev.untrained_perplexity:
            decode = self.dev.decode_untrained
        scores, samples = decode(check_stop)
        return Decoded({**metrics, **scores}, samples)

    def evaluate_average(self, step: TrainingStep, at_step: int) -> dict[str, float]:
        """Load the averaged weights of the run into the model and return their dev metrics.

        Raise InterruptedRunError after SIGINT or SIGTERM; the resumed run repeats the validation.
        """
        step.load_weights(self.run.averaged / WEIGHTS)
        with self.stop:
            return self.evaluate(step, at_step).metrics

    def log_results(self, decoded: Decoded, at_step: int, is_main: bool) -> None:
        """Log sample translations and dev metrics.

        Args:
            decoded: The metrics and the samples.
            at_step: Number of steps of the run so far.
            is_main: Also write the samples to samples.jsonl; True only in the main process.
        """
        for src, reference, hypothesis in decoded.samples:
            log.info("  source     %s\n  reference  %s\n  hypothesis %s", src, reference, hypothesis)
        if decoded.samples and is_main:
            append_record(self.run.samples, "dev", at_step, samples=decoded.samples)
        for line in metric_lines(decoded.metrics):
            log.info("step %d: dev %s", at_step, line)

    def finite_loss(self, data: str, batches: Iterable[Batch], step: TrainingStep, at_step: int) -> dict[str, float]:
        """Return `dev_loss` of some data; raise MtformerError if it is not finite.

        Args:
            data: Name of the data in the message: dev or training.
            batches: Batches of the data.
            step: The model, with the weights to evaluate.
            at_step: Number of steps of the run so far.
        """
        metrics = dev_loss(step, batches)
        if not math.isfinite(metrics["loss"]):
            raise divergence(self.run, at_step, f"the {data} loss is not finite")
        return metrics


def _until_stopped(batches: Iterable[Batch], check_stop: Callable[[], object]) -> Iterator[Batch]:
    for batch in batches:
        check_stop()
        yield batch


def dev_loss(step: TrainingStep, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the label-smoothed loss and the perplexity (without smoothing) per target token, including eos.

    The result also has `loss NAME` and `perplexity NAME` for each name in `Batch.pairs_of`. Batches are distributed
    over the processes; all processes return the same result.
    """
    sums = {"": np.zeros(3)}  # loss, nll and number of tokens, of all batches and by name
    for batch in _batches_of_process(batches, step.ranks):
        loss, nll = step.evaluate(batch)
        values = np.array([loss, nll, batch.num_tgt_tokens])
        for name in ("", *batch.pairs_of):
            sums[name] = sums.get(name, 0.0) + values

    metrics = {}
    for name, (loss, nll, num_tokens) in _totals(sums, step.ranks).items():
        metrics[f"loss {name}".rstrip()] = loss / num_tokens
        log_perplexity = min(nll / num_tokens, MAX_LOG_PERPLEXITY)
        metrics[f"perplexity {name}".rstrip()] = math.exp(log_perplexity)
    return metrics


def _totals(sums: Mapping[str, np.ndarray], ranks: Ranks) -> dict[str, list[float]]:
    """Return sums of three values, by name, summed over the processes."""
    # Processes may have batches of different dev sets, so they first exchange the names.
    names_by_process = ranks.gather(list(sums))
    names = list(dict.fromkeys(itertools.chain(*names_by_process)))

    flat_sums = np.concatenate([sums.get(name, np.zeros(3)) for name in names])
    flat_totals = ranks.sum(flat_sums.tolist())
    totals = np.reshape(flat_totals, (-1, 3))
    return dict(zip(names, totals.tolist(), strict=True))


def _batches_of_process(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch]:
    """Yield the batches of this process.

    All processes get the same number of batches, because each must take part in gathering sharded weights.
    """
    rest = iter(batches)
    while group := list(itertools.islice(rest, ranks.size)):
        if ranks.rank < len(group):
            yield group[ranks.rank]
        else:
            yield group[-1].without_targets()


def metric_lines(metrics: Mapping[str, float]) -> list[str]:
    """Return dev metrics as text: a line with those of all dev sets, and a line for each name."""
    texts_by_name: dict[str, list[str]] = {}
    for key, value in metrics.items():
        metric, _, name = key.partition(" ")
        texts_by_name.setdefault(name, []).append(f"{metric} {value:.4g}")

    lines = []
    for name, texts in texts_by_name.items():
        prefix = f"{name}: " if name else ""
        lines.append(prefix + ", ".join(texts))
    return lines
