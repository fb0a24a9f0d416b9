"""Training a run from its config: data preparation, training, checkpoint averaging."""

import contextlib
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from mtformer.config.fields import key_metadata
from mtformer.config.loading import config_diff, load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.device import be_deterministic, pick_device, pick_precision, set_up_memory
from mtformer.errors import CheckpointError, DeviceError, log
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.open_run import Resume, compare_environments, describe_environment, open_run
from mtformer.experiment.preflight import MemoryCheck, check_memory, choose_batches, make_step
from mtformer.experiment.prepare import Prepared, load_pretrained, prepare_experiment
from mtformer.experiment.run_state import lock_run, record_state
from mtformer.files import read_meta, sealed, verify, write_json
from mtformer.model.transformer import count_parameters
from mtformer.run_dir import WEIGHTS, RunDir, write_config
from mtformer.training.budget import Plans
from mtformer.training.checkpoint import newest_good, save_averaged
from mtformer.training.loop import Position, Trainer
from mtformer.training.metrics import Progress
from mtformer.training.ranks import Ranks, join_ranks, own_device
from mtformer.training.step import TrainingStep
from mtformer.training.validation import Decoded, DecodeDev
from mtformer.weights import average_weights, read_weights


class Outcome(NamedTuple):
    """Result of `train_experiment`."""

    position: Position
    was_finished: bool
    """True if the run was already finished before this call."""


def train_experiment(
    config: Config, run: RunDir, progress: Progress, resume: Resume, overwrite: bool, plans: Plans | None = None
) -> Outcome:
    """Train the tokenizer if it does not exist, prepare the data, train, and average checkpoints if configured.

    With `max_minutes`, `plans` are followed (see `Trainer`); None: plan by time. Raise MtformerError on a user error,
    InterruptedRunError after a signal, once a checkpoint has been saved.
    """
    start, config = time.perf_counter(), resolve_paths(config)
    device = own_device(pick_device(config.training.device))
    set_up_memory()
    if config.training.deterministic and device.type == "cuda":
        be_deterministic()
    with join_ranks(device) as ranks:
        # Only the main process creates the run directory.
        starts = open_run(run, config, resume, overwrite) if ranks.is_main else contextlib.nullcontext(False)
        with lock_run(run) if ranks.is_main else contextlib.nullcontext():
            with starts as is_resumed:
                trainer, is_resumed, checked = _prepare(config, run, progress, device, ranks, is_resumed)
            trainer.plans = plans
            with record_state(run) if ranks.is_main else contextlib.nullcontext():
                first_step = trainer.position.step
                validation_seconds = checked.one_validation_seconds if checked is not None else 0.0
                position = trainer.train(time.perf_counter() - start, validation_seconds)
                if config.training.average_last:
                    _average(trainer)
    torch.use_deterministic_algorithms(False)  # scoring may sample, for which CUDA has no deterministic kernel
    return Outcome(position, is_resumed and position.step == first_step)


def _prepare(
    config: Config, run: RunDir, progress: Progress, device: torch.device, ranks: Ranks, is_resumed: bool
) -> tuple[Trainer, bool, MemoryCheck | None]:
    """Return the trainer, whether it resumes a run (decided by the main process), and the check, if not finished."""
    checkpoint = newest_good(run) if is_resumed else None
    if is_resumed and checkpoint is None:  # the corpora may have been corrected; else the tokenizer is in the cache
        shutil.rmtree(run.tokenizer, ignore_errors=True)
        write_config(run, run.config.read_text(encoding="utf-8"))  # with checksums of the remaining files
    is_resumed, checkpoint = ranks.gather((is_resumed, checkpoint))[0]
    earlier = read_meta(checkpoint)["made_with"] if checkpoint is not None else {}
    precision = ranks.gather(_pick_precision(config, device, earlier))[0]
    with ranks.main_first():
        if not ranks.is_main and not run.tokenizer.is_dir():
            what = f"process {ranks.rank} cannot read the files that process 0 wrote"
            raise CheckpointError(f"{run.path}: {what}; set --run-dir to a folder that all machines share")
        prepared = prepare_experiment(config, run.tokenizer, progress.prepared)
    made_with = describe_environment(config, prepared, device, precision, ranks.size)
    made_with["compiled"] = bool(earlier.get("compiled"))  # decided by `check_memory`
    if checkpoint is not None:
        compare_environments(run, earlier, made_with)
    step = make_step(config, prepared, device, precision, ranks)
    is_auto = config.training.batch_tokens == "auto"
    resolved, prepared = choose_batches(config, prepared, step, earlier.get("batch_tokens") if is_auto else None)
    if is_auto:
        made_with["batch_tokens"] = resolved.training.batch_tokens
    parts = ", ".join(f"{name} {count:,}" for name, count in count_parameters(step.model).items())
    log.info("device %s, precision %s; parameters: %s", device, precision, parts)
    if checkpoint is None and config.training.init_from is not None:
        load_pretrained(config, prepared.tokenizers, step)
    trainer = make_trainer(resolved, run, step, prepared, progress, made_with)
    if is_resumed:
        changes = config_diff(load_config(run.config).config, config)
        trainer.resume(checkpoint, {key: [before, after] for key, before, after in changes})
        if trainer.position.step > config.training.max_steps:
            what = f"training.max_steps {config.training.max_steps} is below the last checkpoint"
            raise CheckpointError(f"{run.path}: {what}, of step {trainer.position.step}; raise it")
        data = {"training data": ("data.train", "data.corpora", "data.filters"), "dev data": ("data.dev",)}
        late = tuple(key for what, keys in data.items() if earlier.get(what) != made_with[what] for key in keys)
        unused = [key for key, *_ in changes if key_metadata(key).on_resume == "warn" or key.startswith(late)]
        if unused and (trainer.is_done() or next(trainer.batches_from(trainer.position.place), None) is None):
            what = f"is finished, so {', '.join(unused)} would have no effect; raise training.max_steps"
            raise CheckpointError(f"{run.path}: {what}, or choose another folder with --run-dir")
        if any(key == "training.best_metric" for key, *_ in changes):
            run.confidence.unlink(missing_ok=True)  # it may be fitted to other weights than those that are used now
    if ranks.is_main:
        write_json(run.data_report, sealed(prepared.report()), indent=2)
    checked = None
    if not trainer.is_done():
        checked = check_memory(resolved, prepared, step, run, earlier.get("compiled"), trainer.position.step)
        made_with["compiled"] = step.is_compiled
        if config.training.max_epochs is not None:
            trainer.expected_steps = checked.num_steps
        log.info("memory check:%s", "".join(f"\n  {what:<15} {value}" for what, value in checked.lines()))
    return trainer, is_resumed, checked


def _pick_precision(config: Config, device: torch.device, earlier: dict[str, Any]) -> str:
    """Return the precision; `auto` keeps its first result when resuming, because it depends on measured times."""
    if config.training.precision == "auto":
        with contextlib.suppress(DeviceError):  # this device may not support it
            return pick_precision(str(earlier.get("precision", "auto")), device)
    return pick_precision(config.training.precision, device)


def _average(trainer: Trainer) -> None:
    """Average the last checkpoints and validate the average on dev, unless that was already done."""
    run, ranks = trainer.run, trainer.ranks
    if ranks.gather(_is_averaged(run, trainer))[0]:
        return
    steps = run.regular_steps()[-trainer.config.average_last :]
    with ranks.main_first():
        if ranks.is_main:
            run.confidence.unlink(missing_ok=True)  # fitted to other weights
            weights = find_weights(run, f"last:{len(steps)}", trainer.config.best_metric)
            with verified_weights(run, weights):
                averaged = average_weights(weights)
            save_averaged(run, steps, averaged, {})
    metrics = trainer.validate_average() if trainer.dev_batches is not None else {}
    if not ranks.is_main:
        return
    if metrics:
        paths = [run.averaged / WEIGHTS]
        with verified_weights(run, paths):
            averaged = read_weights(paths[0])
        save_averaged(run, steps, averaged, metrics)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    shown = f": dev {figures}" if figures else ""
    log.info("averaged the checkpoints of steps %s%s", ", ".join(map(str, steps)), shown)


def _is_averaged(run: RunDir, trainer: Trainer) -> bool:
    """Return True if the average of the last checkpoints exists and, if there is dev data, was validated."""
    try:
        meta = verify(run.averaged, WEIGHTS)
        is_same = meta["steps"] == run.regular_steps()[-trainer.config.average_last :]
        return bool(is_same and (meta["metrics"] or trainer.dev_batches is None))
    except CheckpointError:
        return False


def make_trainer(
    config: Config, run: RunDir, step: TrainingStep, prepared: Prepared, progress: Progress, made_with: dict[str, Any]
) -> Trainer:
    """Return the training loop, with the training data, the dev data and a function that decodes the dev data."""
    ranks, pin = step.ranks, step.device.type == "cuda"
    start = partial(prepared.batches.start, max_epochs=config.training.max_epochs, pin=pin)
    batches_from = partial(start, rank=ranks.rank, num_ranks=ranks.size)
    decode = decode_dev(config, step, prepared) if prepared.dev else None
    dev_batches = partial(prepared.dev_batches, config) if prepared.dev else None
    return Trainer(config, run, step, batches_from, dev_batches, decode, progress, made_with)


def decode_dev(config: Config, step: TrainingStep, prepared: Prepared) -> DecodeDev:
    """Return a function that translates the dev data with the current model and computes BLEU and chrF.

    The processes divide the sentences; all of them get the scores of each dev set and direction, and their mean.
    """
    ranks = step.ranks

    def decode(progress: Callable[[int], object]) -> Decoded:
        translator = prepared.translator(config, step.full_model())
        found: dict[str, list[float]] = {}
        samples: list[tuple[str, str, str]] = []
        for one in prepared.dev:
            own = translator.into(one.tgt_lang).translate(one.sources[ranks.rank :: ranks.size], progress=progress)
            hypotheses = [""] * len(one.sources)
            for rank, texts in enumerate(ranks.gather([translation.text for translation in own])):
                hypotheses[rank :: ranks.size] = texts
            settings = for_language(config.evaluation, one.tgt_lang)
            for result in score(hypotheses, one.references, settings, ("bleu", "chrf")):
                for name in ("", *one.names):
                    found.setdefault(f"{result.name} {name}".rstrip(), []).append(result.value)
            rows = zip(one.sources, one.references, hypotheses, strict=True)
            samples += list(rows)[: config.training.sample_sentences]
        return Decoded({name: sum(values) / len(values) for name, values in found.items()}, samples)

    return decode
