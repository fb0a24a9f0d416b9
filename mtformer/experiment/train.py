"""Training a run from its config: data preparation, training, checkpoint averaging."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from mtformer.cluster.cores import num_cores
from mtformer.config.loading import config_diff, load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.device import be_deterministic, pick_device, pick_precision, set_up_memory
from mtformer.errors import CheckpointError, DeviceError, log
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.limits import warn_of_limits
from mtformer.experiment.open_run import Resume, open_run
from mtformer.experiment.preflight import MemoryCheck, check_memory, choose_batches, make_step
from mtformer.experiment.prepare import DevSet, Prepared, load_pretrained, prepare_experiment, with_short_outputs
from mtformer.experiment.resume import (
    Environment,
    compare_environments,
    describe_environment,
    environment_changes,
    settings_for_training,
)
from mtformer.experiment.run_state import lock_run, record_state
from mtformer.files import read_meta, sealed, verify, write_json
from mtformer.model.transformer import count_parameters
from mtformer.run_dir import WEIGHTS, RunDir, write_config
from mtformer.training.budget import Plans
from mtformer.training.checkpoint import newest_good, save_averaged
from mtformer.training.loop import Trainer
from mtformer.training.progress import Progress
from mtformer.training.ranks import Ranks, check_own_devices, join_ranks, own_device
from mtformer.training.resuming import resume_trainer
from mtformer.training.state import TrainPosition
from mtformer.training.step import TrainingStep
from mtformer.training.validation import Decoded, DevData
from mtformer.weights import average_weights, read_weights

MAX_NOISE_PROCESSES = 4
"""Default number of processes that add noise for a GPU: each has 40,000 pairs/s, and a base model on an H200 needs
60,000 (calculated)."""


UNTRAINED_POWER = 0.6
"""A model is untrained above this power of the vocabulary size as perplexity: 220 for 8,000 pieces."""


class Outcome(NamedTuple):
    """Result of `train_experiment`."""

    position: TrainPosition
    was_finished: bool
    """True if the run was already finished before this call."""
    max_steps: int
    """`training.max_steps`, or the number of steps that was planned for `training.max_minutes`."""


@dataclass(frozen=True)
class _Session:
    """A run, and the process that trains it."""

    config: Config
    run: RunDir
    progress: Progress
    device: torch.device
    ranks: Ranks
    plans: Plans | None
    """With `max_minutes`, plans to follow; None: plan by time."""


@dataclass(frozen=True)
class _Start:
    """Where training starts; the main process decides this for all processes."""

    is_resumed: bool
    checkpoint: Path | None
    """Checkpoint to resume from; None: start at step 0."""
    environment: Environment
    """Environment that the checkpoint records; empty without checkpoint."""


class _Ready(NamedTuple):
    """A run that is ready to train."""

    trainer: Trainer
    is_resumed: bool
    checked: MemoryCheck | None
    """None if the run is finished."""


def train_experiment(
    config: Config, run: RunDir, progress: Progress, resume: Resume, overwrite: bool, plans: Plans | None = None
) -> Outcome:
    """Train the tokenizer if it does not exist, prepare the data, train, and average checkpoints if configured.

    Args:
        config: The experiment.
        run: Run directory.
        progress: Display of the progress.
        resume: Resume the run; `auto`: only if it exists.
        overwrite: Replace an existing run.
        plans: With `max_minutes`, plans to follow (see `StepPlan.start`); None: plan by time.

    Raises:
        MtformerError: On a user error.
        InterruptedRunError: After a signal, once a checkpoint has been saved.
    """
    start_time = time.perf_counter()
    config = resolve_paths(config)
    set_up_memory()
    device = own_device(pick_device(config.training.device))
    if config.training.deterministic and device.type == "cuda":
        be_deterministic()

    with join_ranks(device) as ranks:
        check_own_devices(device, ranks)
        session = _Session(config, run, progress, device, ranks, plans)
        # Only the main process creates and locks the run directory, and records its state.
        is_main = ranks.is_main
        opened_run = open_run(run, config, resume, overwrite) if is_main else contextlib.nullcontext(False)
        with lock_run(run) if is_main else contextlib.nullcontext():
            with opened_run as is_resumed:
                ready = _prepare(session, is_resumed)
            trainer = ready.trainer
            first_step = trainer.position.step
            with record_state(run) if is_main else contextlib.nullcontext():
                validation_seconds = ready.checked.pace.validation_seconds if ready.checked is not None else 0.0
                position = trainer.train(time.perf_counter() - start_time, validation_seconds)
                if config.training.average_last:
                    _average(trainer)

    torch.use_deterministic_algorithms(False)  # scoring may sample, for which CUDA has no deterministic kernel
    was_finished = ready.is_resumed and position.step == first_step
    return Outcome(position, was_finished, trainer.config.max_steps)


# ---- preparation ----------------------------------------------------------------------------------------------------


def _prepare(session: _Session, is_resumed: bool) -> _Ready:
    """Prepare the data and the model of a run, restore its state if it is resumed, and check the memory."""
    config = session.config
    start = _find_start(session, is_resumed)
    precision = session.ranks.gather(_pick_precision(session, start))[0]
    prepared = _prepare_data(session)
    environment = describe_environment(config, prepared, session.device, precision, session.ranks.size)
    environment["compiled"] = bool(start.environment.get("compiled"))  # `_check_memory` decides this
    if start.checkpoint is not None:
        compare_environments(session.run, start.environment, environment)

    step = make_step(config, prepared, session.device, precision, session.ranks)
    is_auto = config.training.batch_tokens == "auto"
    earlier_batch_tokens = start.environment.get("batch_tokens") if is_auto else None
    resolved, prepared = choose_batches(config, prepared, step, earlier_batch_tokens)
    if is_auto:
        environment["batch_tokens"] = resolved.training.batch_tokens
    _log_model(step)
    if start.checkpoint is None and config.training.init_from is not None:
        load_pretrained(config, prepared.tokenizers, step)

    trainer = make_trainer(resolved, session.run, step, prepared, session.progress, environment)
    trainer.plans = session.plans
    if start.is_resumed:
        _resume(session, trainer, start)
    if session.ranks.is_main:
        write_json(session.run.data_report, sealed(prepared.report()), indent=2)
    checked = None
    if not trainer.is_done():
        checked = _check_memory(trainer, prepared, start)
    return _Ready(trainer, start.is_resumed, checked)


def _find_start(session: _Session, is_resumed: bool) -> _Start:
    """Return where training starts; damaged checkpoints are renamed, see `newest_good`."""
    run = session.run
    checkpoint = newest_good(run) if is_resumed else None
    if is_resumed and checkpoint is None:  # the corpora may have been corrected; else the tokenizer is in the cache
        shutil.rmtree(run.tokenizer, ignore_errors=True)
        write_config(run, run.config.read_text(encoding="utf-8"))  # with checksums of the remaining files

    is_resumed, checkpoint = session.ranks.gather((is_resumed, checkpoint))[0]
    environment = read_meta(checkpoint)["made_with"] if checkpoint is not None else {}
    return _Start(is_resumed, checkpoint, environment)


def _pick_precision(session: _Session, start: _Start) -> str:
    """Return the precision; `auto` keeps its first result when resuming, because it depends on measured times."""
    chosen = session.config.training.precision
    if chosen == "auto":
        with contextlib.suppress(DeviceError):  # this device may not support it
            return pick_precision(str(start.environment.get("precision", "auto")), session.device)
    return pick_precision(chosen, session.device)


def _prepare_data(session: _Session) -> Prepared:
    """Prepare tokenizers and data on the main process, and load them on the others."""
    with session.ranks.main_first():
        if not session.ranks.is_main and not session.run.tokenizer.is_dir():
            raise CheckpointError(
                f"{session.run.path}: process {session.ranks.rank} cannot read the files that process 0 wrote; set "
                "--run-dir to a folder that all machines share"
            )
        return prepare_experiment(session.config, session.run.tokenizer, session.progress.prepared)


def _log_model(step: TrainingStep) -> None:
    num_parameters = count_parameters(step.model)
    counts = [f"{name} {count:,}" for name, count in num_parameters.items()]
    log.info("device %s, precision %s; parameters: %s", step.device, step.precision, ", ".join(counts))


def _resume(session: _Session, trainer: Trainer, start: _Start) -> None:
    """Restore the state of a run; raise CheckpointError if the changed settings contradict it or have no effect."""
    run = session.run
    config_changes = config_diff(load_config(run.config).config, session.config)
    changes = {key: [before, after] for key, before, after in config_changes}
    changed_keys = list(changes)
    if start.checkpoint is not None:
        changes |= environment_changes(start.environment, trainer.made_with)
    resume_trainer(trainer, start.checkpoint, changes)

    step = trainer.position.step
    max_steps = session.config.training.max_steps
    if step > max_steps:
        raise CheckpointError(
            f"{run.path}: training.max_steps {max_steps} is below the last checkpoint, of step {step}; raise "
            "training.max_steps"
        )
    settings = settings_for_training(changed_keys, start.environment, trainer.made_with)
    if settings and _is_finished(trainer):
        raise CheckpointError(
            f"{run.path}: is finished, so {', '.join(settings)} would have no effect; raise training.max_steps, or "
            "choose another folder with --run-dir"
        )
    if "training.best_metric" in changed_keys:
        run.confidence.unlink(missing_ok=True)  # it may be fitted to other weights than those that are used now


def _is_finished(trainer: Trainer) -> bool:
    """Return True if no steps remain, or no batches."""
    if trainer.is_done():
        return True
    batches = trainer.batches_from(trainer.position.place)
    return next(batches, None) is None


def _check_memory(trainer: Trainer, prepared: Prepared, start: _Start) -> MemoryCheck:
    """Check the memory, decide about compiling the model, and log the measurements."""
    config = trainer.experiment
    is_compiled = start.environment.get("compiled")
    checked = check_memory(config, prepared, trainer.step, trainer.run, is_compiled, trainer.position.step)
    trainer.made_with["compiled"] = trainer.step.is_compiled
    trainer.expected_steps = checked.num_steps

    lines = [f"\n  {name:<15} {value}" for name, value in checked.lines()]
    log.info("memory check:%s", "".join(lines))
    if start.checkpoint is None and trainer.plans is None:
        num_pairs = prepared.batches.mixture.pairs_per_epoch
        warn_of_limits(config, checked.pace, checked.num_steps, checked.steps_per_epoch, num_pairs)
    return checked


def make_trainer(
    config: Config, run: RunDir, step: TrainingStep, prepared: Prepared, progress: Progress, made_with: Environment
) -> Trainer:
    """Return the training loop, with the training data, the dev data and a function that decodes the dev data.

    Args:
        config: The experiment.
        run: Run directory.
        step: The model and its optimizer.
        prepared: The data and the tokenizers.
        progress: Display of the progress.
        made_with: Environment of the training, which checkpoints record.
    """
    is_on_cuda = step.device.type == "cuda"
    num_workers = num_noise_processes(is_on_cuda, config.data.num_workers)
    batches = replace(prepared.batches, num_workers=num_workers)
    batches_from = partial(
        batches.start,
        max_epochs=config.training.max_epochs,
        pin=is_on_cuda,
        rank=step.ranks.rank,
        num_ranks=step.ranks.size,
        gather=step.ranks.gather,
    )
    dev = None
    if prepared.dev:
        dev_batches = partial(prepared.dev_batches, config)
        decode = partial(decode_dev, config, step, prepared)
        dev = DevData(dev_batches, decode)
        if config.training.max_minutes is not None:
            decode_untrained = partial(decode_dev, with_short_outputs(config), step, prepared)
            untrained_perplexity = prepared.tokenizers.tgt.vocab_size**UNTRAINED_POWER
            dev = DevData(dev_batches, decode, decode_untrained, untrained_perplexity)
    return Trainer(config, run, step, batches_from, dev, progress, made_with)


def num_noise_processes(is_on_cuda: bool, num_workers: int | None) -> int:
    """Return the number of processes in which each process of a run adds noise to its pairs; 1: only a thread.

    On a CPU, all cores train, so further processes would only compete with them.

    Args:
        is_on_cuda: True if the model is on a GPU.
        num_workers: `data.num_workers`.
    """
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # set by torchrun
    cores_of_process = num_cores() // num_processes
    if not is_on_cuda or cores_of_process < 2:
        return 1
    limit = num_workers or MAX_NOISE_PROCESSES
    return min(limit, max(2, cores_of_process - 1))


# ---- validation -----------------------------------------------------------------------------------------------------


def decode_dev(config: Config, step: TrainingStep, prepared: Prepared, progress: Callable[[int], object]) -> Decoded:
    """Translate the dev data with the current model and compute BLEU and chrF.

    The processes divide the sentences; all of them get the scores of each dev set and direction, and their mean.

    Args:
        config: The experiment.
        step: The current model.
        prepared: The dev data and the tokenizers.
        progress: Function that is called after each batch with the number of finished sentences.
    """
    translator = prepared.translator(config, step.search_model())
    values_by_name: dict[str, list[float]] = {}
    samples: list[tuple[str, str, str]] = []
    for dev_set in prepared.dev:
        hypotheses = _translate_dev(translator, dev_set, step.ranks, progress)
        settings = for_language(config.evaluation, dev_set.tgt_lang, dev_set.references)
        for result in score(hypotheses, dev_set.references, settings, ("bleu", "chrf")):
            for name in ("", *dev_set.names):
                key = f"{result.name} {name}".rstrip()
                values_by_name.setdefault(key, []).append(result.value)

        rows = list(zip(dev_set.sources, dev_set.references, hypotheses, strict=True))
        samples += rows[: config.training.sample_sentences]
    means = {name: sum(values) / len(values) for name, values in values_by_name.items()}
    return Decoded(means, samples)


def _translate_dev(
    translator: Translator, dev_set: DevSet, ranks: Ranks, progress: Callable[[int], object]
) -> list[str]:
    """Return the translations of a dev set, of which each process translates a part."""
    sources = dev_set.sources[ranks.rank :: ranks.size]
    translations = translator.into(dev_set.tgt_lang).translate(sources, progress=progress)
    own_hypotheses = [translation.text for translation in translations]

    hypotheses = [""] * len(dev_set.sources)
    for rank, texts in enumerate(ranks.gather(own_hypotheses)):
        hypotheses[rank :: ranks.size] = texts
    return hypotheses


# ---- averaging ------------------------------------------------------------------------------------------------------


def _average(trainer: Trainer) -> None:
    """Average the last checkpoints and validate the average on dev, unless that was already done."""
    run = trainer.run
    ranks = trainer.ranks
    if ranks.gather(_is_averaged(trainer))[0]:
        return

    steps = run.regular_steps()[-trainer.config.average_last :]
    with ranks.main_first():
        if ranks.is_main:
            run.confidence.unlink(missing_ok=True)  # fitted to other weights
            paths = find_weights(run, f"last:{len(steps)}", trainer.config.best_metric)
            with verified_weights(run, paths):
                averaged = average_weights(paths)
            save_averaged(run, steps, averaged, {})

    metrics: dict[str, float] = {}
    if trainer.dev is not None:
        metrics = trainer.validator.evaluate_average(trainer.step, trainer.position.step)
    if not ranks.is_main:
        return
    if metrics:
        _add_metrics(run, steps, metrics)
    _log_average(steps, metrics)


def _is_averaged(trainer: Trainer) -> bool:
    """Return True if the average of the last checkpoints exists and, if there is dev data, was validated."""
    run = trainer.run
    try:
        meta = verify(run.averaged, WEIGHTS)
    except CheckpointError:
        return False
    steps = run.regular_steps()[-trainer.config.average_last :]
    is_validated = bool(meta["metrics"]) or trainer.dev is None
    return is_validated and meta["steps"] == steps


def _add_metrics(run: RunDir, steps: list[int], metrics: dict[str, float]) -> None:
    """Save the averaged weights again, with their dev metrics."""
    path = run.averaged / WEIGHTS
    with verified_weights(run, [path]):
        averaged = read_weights(path)
    save_averaged(run, steps, averaged, metrics)


def _log_average(steps: Sequence[int], metrics: dict[str, float]) -> None:
    figures = [f"{name} {value:.4g}" for name, value in metrics.items()]
    result = f": dev {', '.join(figures)}" if figures else ""
    log.info("averaged the checkpoints of steps %s%s", ", ".join(map(str, steps)), result)
