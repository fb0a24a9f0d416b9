"""Memory check and dry run: memory, time and disk space for a training run, estimated by trying its largest batches."""

import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from mtformer.config.loading import resolve_paths
from mtformer.config.schema import Config, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.decoding.search.engine import plan_batches
from mtformer.device import DTYPES, peak_bytes, pick_device, pick_precision, set_up_memory
from mtformer.errors import DeviceError, log, warn_once
from mtformer.experiment.limits import warn_of_limits
from mtformer.experiment.prepare import Prepared, prepare_experiment, with_short_outputs
from mtformer.experiment.recommend import differences, measure, recommend
from mtformer.formatting import format_bytes, format_duration
from mtformer.model.transformer import Transformer, count_parameters
from mtformer.run_dir import RunDir
from mtformer.training.budget import fitting_plan, num_last_validations, num_validations
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.schedule import TO_THE_END
from mtformer.training.speed import Pace, relative_cost
from mtformer.training.step import TrainingStep
from mtformer.training.validation import dev_loss

COMPILES_ON = "cuda"
"""Type of the devices on which `training.compile: auto` may compile the model."""
COMPILE_SECONDS = 240
"""Assumed time to compile a model on CUDA in one graph (not measured yet)."""
GRAPH_SECONDS = 30
"""Assumed additional time for each further graph (not measured yet); see `num_graphs`."""
COMPILE_GAIN = 0.1
"""Assumed share of the time for computation that compiling saves (not measured yet)."""
LAUNCH_GAIN = 0.4
"""Assumed share of the time for launching kernels that compiling saves (not measured yet); a compiled model has about
half as many kernels (`tests/training/test_compilation.py`)."""
SHARDED_GRAPHS = 5
"""Number of graphs of a sharded model, counted with PyTorch 2.13: the embeddings and the layers of both sides, and the
rest."""
FIRST_BUCKET_BYTES = 1 << 20
"""Size of the first bucket of gradients of DDP; the others are larger."""
BYTES_OF_WEIGHT = 4
"""Bytes per parameter of a file of weights, in float32."""
BYTES_OF_CHECKPOINT = 12
"""Bytes per parameter of a checkpoint: the weight and two Adam moments in float32."""


class MemoryCheck(NamedTuple):
    """Measurements on the largest batches."""

    shape: str
    """Shape of the largest training batch."""
    step_seconds: float
    """Time of a step on batches of this shape, including all micro-batches."""
    peak_bytes: int
    """Peak memory of the process (on CUDA, of the device)."""
    num_steps: int
    """Number of steps: `max_steps`, or as many as fit in `max_minutes`."""
    steps_per_epoch: float
    pace: Pace
    """Expected seconds of a step and of a validation."""
    training_seconds: float
    """Time of these steps."""
    validation_seconds: float
    """Expected time of all validations."""
    disk_bytes: int
    """Peak size of the checkpoints."""
    free_bytes: int

    @property
    def total_seconds(self) -> float:
        """Estimated time of training and validation, in seconds."""
        return self.training_seconds + self.validation_seconds

    def lines(self) -> list[tuple[str, str]]:
        """Return pairs (name, value) for display."""
        time_needed = f"{format_duration(self.training_seconds)} of training"
        if self.validation_seconds:
            time_needed += f", about {format_duration(self.validation_seconds)} of validation"
        needed = format_bytes(self.disk_bytes)
        free = format_bytes(self.free_bytes)
        return [
            ("largest batch", self.shape),
            ("peak memory", format_bytes(self.peak_bytes)),
            ("slowest step", f"{self.step_seconds:.2f} s"),
            ("estimated time", time_needed),
            ("disk", f"{needed} for checkpoints, {free} free"),
        ]


def make_step(
    config: Config, prepared: Prepared, device: torch.device, precision: str, ranks: Ranks = ALONE
) -> TrainingStep:
    """Return a new model with its optimizer: the same weights on every process, but different dropout masks.

    Args:
        config: the config of the run.
        prepared: its data and tokenizers, which determine the vocabulary sizes.
        device: device of the model.
        precision: precision of the activations, a key of `DTYPES`.
        ranks: the processes of the run.

    Raises:
        DeviceError: if the model is to be compiled for a CPU.
    """
    if config.training.compile == "always" and device.type == "cpu":
        raise DeviceError(
            "training.compile: on a CPU, torch.compile takes minutes and makes training no faster; use auto or never"
        )

    seed = config.training.seed
    torch.manual_seed(seed)
    src_vocab = prepared.tokenizers.src.vocab_size
    tgt_vocab = prepared.tokenizers.tgt.vocab_size
    model = Transformer(config.model, src_vocab, tgt_vocab, compute_dtype=DTYPES[precision])
    step = TrainingStep(model.to(device), config.training, ranks)
    if not ranks.is_main:
        seed_of_process = (seed << 20) + ranks.rank
        torch.manual_seed(seed_of_process % 2**63)
    return step


class Trial(NamedTuple):
    """Result of trying a config."""

    config: Config
    """Config of the run, with absolute paths and the chosen batch size."""
    prepared: Prepared
    step: TrainingStep
    checked: MemoryCheck


def try_config(config: Config, run: RunDir) -> Trial:
    """Prepare tokenizer, data and model in this process, and check the memory.

    Tokenizer and data are stored in the cache, so training with this config does not prepare them again. Raise
    MtformerError on any error that would also occur in training.
    """
    config = resolve_paths(config)
    set_up_memory()
    device = pick_device(config.training.device)
    precision = pick_precision(config.training.precision, device)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_experiment(config, Path(folder) / "tokenizer")
    step = make_step(config, prepared, device, precision)
    config, prepared = choose_batches(config, prepared, step)
    checked = check_memory(config, prepared, step, run)
    return Trial(config, prepared, step, checked)


def dry_run(config: Config, run: RunDir) -> list[tuple[str, str]]:
    """Try a config, and return pairs (name, value) for display; for errors see `try_config`."""
    chosen, prepared, step, checked = try_config(config, run)
    rows = [("device, precision", f"{step.device}, {step.precision}")]

    rows.append(("vocabulary", _vocabulary(prepared)))
    for corpus in prepared.corpora:
        rows.append((f"training pairs, {corpus.name}", f"{len(corpus.store):,}"))
    num_dev_pairs = sum(len(dev.sources) for dev in prepared.dev)
    rows.append(("dev pairs", f"{num_dev_pairs:,}"))
    rows.append(("test sets", ", ".join(config.data.test) or "none"))

    num_epochs = checked.num_steps / checked.steps_per_epoch
    rows.append(("steps per epoch", f"{checked.steps_per_epoch:,.1f}"))
    rows.append(("total steps", f"{checked.num_steps:,} ({num_epochs:,.1f} epochs)"))
    for part, num_parameters in count_parameters(step.model).items():
        rows.append((f"parameters, {part}", f"{num_parameters:,}"))
    rows += checked.lines()

    num_pairs = prepared.batches.mixture.pairs_per_epoch
    warn_of_limits(chosen, checked.pace, checked.num_steps, checked.steps_per_epoch, num_pairs)
    if checked.total_seconds > 3600:
        settings = "training.max_minutes=60"
        if config.training.max_epochs is not None:
            settings += " training.max_epochs=null"
        rows.append(("to train for an hour", settings))
    if config.training.init_from is None:  # otherwise, the run determines the sizes
        corpus_size = measure(config)
        changes = differences(config, recommend(corpus_size))
        rows.append((f"recommended for {corpus_size.pairs:,} pairs", changes))
    return rows


def _vocabulary(prepared: Prepared) -> str:
    """Return the sizes of the vocabularies for display."""
    tokenizers = prepared.tokenizers
    sizes = {tokenizer.vocab_size for tokenizer in tokenizers}
    text = " and ".join(f"{size:,}" for size in sorted(sizes))
    return f"{text} (joint)" if tokenizers.joint else text


def choose_batches(
    config: Config, prepared: Prepared, step: TrainingStep, earlier: int | None = None
) -> tuple[Config, Prepared]:
    """Choose `batch_tokens` (if `auto`) and `accumulation_steps` for `step_tokens`; all processes call this together.

    Args:
        config: the config of the run.
        prepared: the data of the run.
        step: the model, which tries batches if `batch_tokens` is `auto`.
        earlier: the size of the micro-batches chosen when a resumed run with `auto` started; None: choose now.

    Returns:
        The config with numbers, and the data with batches of this size.
    """
    training = config.training
    if training.step_tokens is None:
        return config, prepared
    if training.batch_tokens != "auto":
        limit = training.batch_tokens
    elif earlier:
        limit = earlier
    else:
        largest = prepared.batches.sizes().largest
        limits_by_rank = step.ranks.gather(step.max_batch_tokens(largest))
        limit = min(limits_by_rank)

    # The fewest micro-batches within the limit, of equal sizes.
    num_processes = step.ranks.size
    accumulation_steps = math.ceil(training.step_tokens / (limit * num_processes))
    batch_tokens = math.ceil(training.step_tokens / (accumulation_steps * num_processes))
    log.info("micro-batches of %s tokens, %d per step and process", f"{batch_tokens:,}", accumulation_steps)

    numbers = {"batch_tokens": batch_tokens, "accumulation_steps": accumulation_steps, "step_tokens": None}
    training = training.model_copy(update=numbers)
    config = config.model_copy(update={"training": training})
    batches = replace(prepared.batches, batch_tokens=batch_tokens)
    return config, replace(prepared, batches=batches)


def check_memory(
    config: Config, prepared: Prepared, step: TrainingStep, run: RunDir, compiled: bool | None = None, done: int = 0
) -> MemoryCheck:
    """Try the largest training and dev batches without changing the model; all processes must call it together.

    With `training.compile: auto` on CUDA, the model is compiled if training takes long enough.

    Args:
        config: the config of the run.
        prepared: its data.
        step: its model and optimizer.
        run: its folder, for the space on the disk.
        compiled: the decision to compile, made when a resumed run started; None: decide now.
        done: number of steps of a resumed run, which take no more time.

    Raises:
        DeviceError: if a single pair does not fit in memory, or two checkpoints do not fit on the disk.
    """
    sizes = prepared.batches.sizes()
    training = _limited_by_epochs(config.training, sizes.num_batches, step.ranks.size)
    disk_bytes, free_bytes = _disk(config, step, run)

    largest = sizes.largest
    for batch in (largest, sizes.longest):
        step.try_batch(batch)  # allocates memory and initializes kernels; only the next call is timed
    batch_seconds = step.try_batch(largest)

    # Training takes as long as this number of largest batches.
    mean_share = _mean_seconds(step, sizes.typical) / batch_seconds
    num_largest = training.max_steps * training.accumulation_steps * mean_share
    if training.compile == "auto" and step.device.type == COMPILES_ON:
        batch_seconds = _compile(step, largest, batch_seconds, batch_seconds * num_largest, compiled)
    mean_step_seconds = batch_seconds * num_largest / training.max_steps

    step.share_memory_limit()
    if step.max_padded_tokens is not None:
        log.warning(
            "the largest batch does not fit in memory; micro-batches of more than %d tokens, including padding, will "
            "be split in two; a lower training.batch_tokens with more accumulation_steps is faster",
            step.max_padded_tokens,
        )
    step.order_gradients(largest)
    validation_seconds = _check_dev(config, prepared, step) if prepared.dev else 0.0

    pace = Pace(mean_step_seconds, validation_seconds)
    training = _limited_by_minutes(training, pace)
    num_steps = training.max_steps
    _warn_of_schedule(config.training, num_steps)

    # Of a resumed run, only the remaining steps and validations take time.
    num_full_steps = relative_cost(training, done, max(done, num_steps))
    validations = num_validations(done, num_steps, training) + num_last_validations(training) if num_steps > done else 0
    return MemoryCheck(
        shape=_shape(largest),
        step_seconds=batch_seconds * training.accumulation_steps,
        peak_bytes=peak_bytes(step.device),
        num_steps=num_steps,
        steps_per_epoch=sizes.num_batches / (training.accumulation_steps * step.ranks.size),
        pace=pace,
        training_seconds=mean_step_seconds * num_full_steps,
        validation_seconds=validation_seconds * validations,
        disk_bytes=disk_bytes,
        free_bytes=free_bytes,
    )


def _mean_seconds(step: TrainingStep, batches: Sequence[Batch]) -> float:
    """Return the mean seconds of batches."""
    seconds: list[float] = []
    for batch in batches:
        if step.device.type == "cuda":
            step.try_batch(batch)  # initializes kernels for this shape
        seconds.append(step.try_batch(batch))
    return sum(seconds) / len(seconds)


def _limited_by_minutes(training: TrainingConfig, pace: Pace) -> TrainingConfig:
    """Return the config with the number of steps, and the interval between validations, that `max_minutes` allows."""
    if training.max_minutes is None:
        return training
    plan = fitting_plan(60 * training.max_minutes, pace, training)
    return training.model_copy(update={"max_steps": max(1, plan.num_steps), "validate_every": plan.validate_every})


def _shape(batch: Batch) -> str:
    """Describe the shape of a batch for display."""
    src_length = batch.src_BS.size(1)
    tgt_length = batch.tgt_in_BT.size(1)
    return f"{batch.num_pairs:,} pairs, {src_length} x {tgt_length} tokens"


def _limited_by_epochs(training: TrainingConfig, batches_per_epoch: float, num_processes: int) -> TrainingConfig:
    """Return the config with the number of steps that `max_epochs` allows."""
    if training.max_epochs is None:
        return training
    num_batches = training.max_epochs * batches_per_epoch
    batches_per_step = training.accumulation_steps * num_processes
    num_steps = math.ceil(num_batches / batches_per_step)
    max_steps = max(1, min(training.max_steps, num_steps))
    return training.model_copy(update={"max_steps": max_steps})


def _compile(step: TrainingStep, largest: Batch, seconds: float, total_seconds: float, compiled: bool | None) -> float:
    """Compile the model if that saves time; return the seconds for the largest batch.

    If that fails on one process, all of them train without it.

    Args:
        step: the model.
        largest: the largest batch.
        seconds: time of this batch without compiling.
        total_seconds: time of training without compiling.
        compiled: the decision made when a resumed run started; None: decide now.

    Raises:
        DeviceError: if compiling fails with sharded weights.
    """
    if compiled is None:
        is_worthwhile = total_seconds * _compile_gain(step, largest, seconds) > compile_seconds(num_graphs(step))
        compiled = step.ranks.gather(is_worthwhile)[0]  # measured times differ between processes
    if not compiled:
        return seconds

    start = time.perf_counter()
    step.compile()
    failure = ""
    try:
        step.try_batch(largest)
    except RuntimeError as error:  # raised by TorchDynamo or its backend; training does not depend on them
        first_line = str(error).strip().split("\n")[0]
        failure = first_line or type(error).__name__
        if step.config.sharded and step.ranks.size > 1:
            # The others may wait for this process in the middle of a layer, so it cannot tell them to start again.
            raise DeviceError(
                f"torch.compile failed on process {step.ranks.rank} ({failure}); set training.compile to never"
            ) from error

    if step.ranks.any(bool(failure)):
        step.stop_compiling()
        step.optimizer.zero_grad(set_to_none=True)  # the backward pass may have failed midway
        cause = failure or "on another process"
        log.warning(
            "torch.compile failed (%s); training continues without it; set training.compile to never to skip the "
            "attempt",
            cause,
        )
        return seconds

    seconds_to_compile = time.perf_counter() - start
    faster_seconds = step.try_batch(largest)
    log.info(
        "torch.compile took %.0f s; the largest batch takes %.3f s instead of %.3f s",
        seconds_to_compile,
        faster_seconds,
        seconds,
    )
    return faster_seconds


def compile_seconds(number: int) -> float:
    """Return the assumed time to compile this number of graphs."""
    return COMPILE_SECONDS + GRAPH_SECONDS * (number - 1)


def num_graphs(step: TrainingStep) -> int:
    """Return the approximate number of graphs into which the model is split when it is compiled.

    DDP splits it at its buckets of gradients (`torch._dynamo.config.optimize_ddp`). FSDP2 splits it at each layer, and
    all encoder layers share a graph, like all decoder layers.
    """
    if isinstance(step.objective, FSDPModule):
        return SHARDED_GRAPHS
    if isinstance(step.objective, DistributedDataParallel):
        num_bytes = BYTES_OF_WEIGHT * count_parameters(step.model)["total"]
        rest_bytes = max(0, num_bytes - FIRST_BUCKET_BYTES)
        return 1 + math.ceil(rest_bytes / step.objective.bucket_bytes_cap)
    return 1


def _compile_gain(step: TrainingStep, largest: Batch, seconds: float) -> float:
    """Return the assumed share of the training time that compiling saves.

    The time of a batch is about a constant for the launches plus a part in proportion to its size. A half of the batch
    shows how large the constant is, because small batches are limited by the launches.

    Args:
        step: the model.
        largest: the largest batch.
        seconds: time of this batch.
    """
    if largest.num_pairs == 1:
        return COMPILE_GAIN
    half, *_ = largest.split(largest.num_padded_tokens // 2)
    step.try_batch(half)  # initializes kernels for this shape
    half_seconds = step.try_batch(half)
    return gain_of_compiling(half_seconds / seconds, half.num_padded_tokens / largest.num_padded_tokens)


def gain_of_compiling(time_ratio: float, size_ratio: float) -> float:
    """Return the share of the time that compiling saves, between `COMPILE_GAIN` and `LAUNCH_GAIN`.

    Args:
        time_ratio: time of a small batch relative to that of a large one.
        size_ratio: its size, relative to that of the large one.
    """
    # Time = launches + size x rate; the launches and the rate of the large batch sum to 1.
    share_of_launches = (time_ratio - size_ratio) / (1 - size_ratio)
    share_of_launches = min(1.0, max(0.0, share_of_launches))
    return COMPILE_GAIN + share_of_launches * (LAUNCH_GAIN - COMPILE_GAIN)


def _warn_of_schedule(training: TrainingConfig, num_steps: int) -> None:
    """Log a warning about parts of the schedule that training, of `num_steps` steps, does not reach."""
    has_fixed_length = training.max_minutes is None  # otherwise, the schedule and the warmup are fitted to the time
    decays_to_the_end = training.schedule in TO_THE_END
    if has_fixed_length and decays_to_the_end and num_steps < training.max_steps:
        log.warning(
            "training ends after about %d steps (max_epochs), before the learning rate has decayed; "
            "set training.max_steps to that number",
            num_steps,
        )
    if has_fixed_length and training.warmup_steps >= num_steps:
        warn_once(
            f"warmup {training.warmup_steps} {num_steps}",  # the runs of a sweep usually have the same values
            "training ends in the warmup: training.warmup_steps %d, %d steps; lower training.warmup_steps",
            training.warmup_steps,
            num_steps,
        )
    if training.consistency != "none" and training.consistency_start >= num_steps:
        start = training.consistency_start
        log.warning("training ends before training.consistency_start %d, so consistency has no effect; lower it", start)


def _check_dev(config: Config, prepared: Prepared, step: TrainingStep) -> float:
    """Score the largest dev batch, translate the longest sentences, and return the expected seconds of a validation."""
    largest = max(prepared.dev, key=lambda dev: len(dev.sources))
    num_sentences = sum(len(dev.sources) for dev in prepared.dev)
    is_on_cpu = step.device.type == "cpu"  # on other devices, the longest outputs show whether the memory suffices
    decoding_config = with_short_outputs(config) if is_on_cpu and config.training.max_minutes is not None else config
    translator = prepared.translator(decoding_config, step.search_model())
    beam_tokens = translator.engine.beam_tokens(translator.decoding)
    encoded = prepared.tokenizers.src.encode(largest.sources)
    lengths = [len(ids) + 1 for ids in encoded]
    batches_of_indices = plan_batches(lengths, beam_tokens, translator.decoding.beam_size)
    longest_sentences = [largest.sources[index] for index in batches_of_indices[0]]
    batches = list(prepared.dev_batches(config))

    # The loss of one batch, for all batches.
    start = time.perf_counter()
    dev_loss(step, batches[:1])
    batch_seconds = time.perf_counter() - start
    loss_seconds = batch_seconds * len(batches)

    # The translation of one batch of the largest dev set, for all dev sets. An untrained model rarely ends a sentence,
    # so its outputs are longer than those of a trained one, which are about as long as the references.
    start = time.perf_counter()
    translations = translator.into(largest.tgt_lang).translate(longest_sentences)
    batch_seconds = time.perf_counter() - start
    longest_output = 1 + max(len(translation.tokens) for translation in translations)
    encoded_references = prepared.tokenizers.tgt.encode(largest.references)
    num_tokens = 0
    for indices in batches_of_indices:
        num_tokens += len(indices) * (1 + max(len(encoded_references[index]) for index in indices))
    share_of_batch = num_tokens / (len(longest_sentences) * longest_output)
    decoding_seconds = batch_seconds * share_of_batch * num_sentences / len(largest.sources)
    return (loss_seconds + decoding_seconds) / step.ranks.size


def _disk(config: Config, step: TrainingStep, run: RunDir) -> tuple[int, int]:
    """Return the peak size of the checkpoints and the free space including existing checkpoints, in bytes."""
    training = config.training
    num_parameters = count_parameters(step.model)["total"]
    weights_bytes = BYTES_OF_WEIGHT * num_parameters
    checkpoint_bytes = BYTES_OF_CHECKPOINT * num_parameters
    if training.ema_decay:
        checkpoint_bytes += weights_bytes
    num_checkpoints = training.keep_last + training.keep_best + 1  # a new one is written before an old one is deleted
    needed = num_checkpoints * checkpoint_bytes
    if training.average_last:
        needed += weights_bytes

    path = run.path.absolute()
    existing_folder = next(folder for folder in (path, *path.parents) if folder.exists())
    checkpoint_files = [file for file in run.checkpoints.rglob("*") if file.is_file()]
    existing_bytes = sum(file.stat().st_size for file in checkpoint_files)
    free = shutil.disk_usage(existing_folder).free + existing_bytes
    if free < 2 * checkpoint_bytes:
        raise DeviceError(
            f"{existing_folder}: {format_bytes(free)} free, but two checkpoints need "
            f"{format_bytes(2 * checkpoint_bytes)}; free some space, or choose another folder with --run-dir"
        )
    if free < needed:
        log.warning(
            "%s: the checkpoints will take up to %s, but only %s are free; "
            "free some space, or lower training.keep_last",
            existing_folder,
            format_bytes(needed),
            format_bytes(free),
        )
    return needed, free
