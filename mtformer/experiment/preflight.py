"""`--dry-run`: everything that can be known before a training starts, some of it by trying."""

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from mtformer.config.loading import resolve_paths
from mtformer.config.schema import Config
from mtformer.errors import ConfigError
from mtformer.experiment.prepare import Prepared, prepare_experiment
from mtformer.model.hardware import keep_freed_memory, pick_device, pick_precision
from mtformer.model.transformer import Transformer, count_parameters
from mtformer.training.step import TrainingStep


def preflight(config: Config) -> list[tuple[str, str]]:
    """Prepares tokenizer and data, then takes two optimizer steps on the largest batch and throws the model away.

    Returns:
        (what, value) in the order to be shown.

    Raises:
        MtformerError: on the mistake that a training would have met.
    """
    config = resolve_paths(config)
    if not config.data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    device = pick_device(config.training.device)
    precision = pick_precision(config.training.precision, device)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_experiment(config, Path(folder) / "tokenizer")
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size).to(device)
    rows = [("device, precision", f"{device}, {precision}"), *_data_rows(config, prepared)]
    rows += [(f"parameters, {part}", f"{count:,}") for part, count in count_parameters(model).items()]
    return rows + _trial_rows(config, prepared, TrainingStep(model, config.training, precision))


def _data_rows(config: Config, prepared: Prepared) -> list[tuple[str, str]]:
    sizes = sorted({prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size})
    num_batches = len(prepared.batches.plan(0))
    steps = num_batches / config.training.accumulation_steps
    return [
        ("vocabulary", " and ".join(f"{size:,}" for size in sizes) + (" (joint)" if prepared.tokenizers.joint else "")),
        ("training pairs", f"{len(prepared.train):,}"),
        ("dev pairs", f"{len(prepared.dev) if prepared.dev is not None else 0:,}"),
        ("test sets", ", ".join(config.data.test) or "none"),
        ("steps per epoch", f"{steps:,.1f}"),
        ("steps in all", f"{config.training.max_steps:,} ({config.training.max_steps / steps:,.1f} epochs)"),
    ]


def _trial_rows(config: Config, prepared: Prepared, step: TrainingStep) -> list[tuple[str, str]]:
    batch = prepared.largest_batch()
    batches = [batch] * config.training.accumulation_steps
    step.run(batches, 1)
    seconds = -time.perf_counter()
    step.run(batches, 2)
    seconds += time.perf_counter()
    shape = f"{batch.num_pairs:,} pairs, {batch.src_BS.size(1)} x {batch.tgt_in_BT.size(1)} tokens"
    return [
        ("largest batch", shape),
        ("memory at its peak", f"{_peak_bytes(step.device) / 1e9:.2f} GB"),
        ("one step on it", f"{seconds:.2f} s"),
        ("time, at most about", f"{seconds * config.training.max_steps / 3600:.1f} hours, without validation"),
    ]


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # In kilobytes on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
