"""From a config to a trained, averaged and scored run."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from mtformer.config.loading import dump_config, load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.data.batches import Batch
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError
from mtformer.evaluation.scores import score
from mtformer.experiment.prepare import Prepared, prepare_experiment
from mtformer.experiment.resuming import compare
from mtformer.model.hardware import keep_freed_memory, pick_device, pick_precision
from mtformer.model.transformer import Transformer, count_parameters
from mtformer.rundir import RunDir, read_meta, write_text
from mtformer.training.average import average_last
from mtformer.training.loop import Position, Trainer
from mtformer.training.metrics import Progress
from mtformer.training.step import TrainingStep
from mtformer.training.validation import Decoded, DecodeDev

log = logging.getLogger("mtformer")


class Outcome(NamedTuple):
    """How a call of `train_experiment` ended."""

    position: Position
    was_finished: bool
    """The run had reached its last step before this call."""


@contextlib.contextmanager
def prepared_run(run: RunDir, config: Config, resume: bool, overwrite: bool) -> Iterator[None]:
    """Makes the run directory ready for what is prepared inside; if that fails, all is as it was before.

    Raises:
        CheckpointError: when the directory is taken and neither flag is given, or cannot be resumed with this config.
    """
    if resume:
        if not run.config.is_file():
            raise CheckpointError(f"{run.path}: nothing to resume here (no config.yaml); leave out --resume to start")
        compare(run, load_config(run.config).config, config)
        yield
        write_text(run.config, dump_config(config))
        return
    replaced = None
    if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        if not run.config.is_file():
            raise CheckpointError(f"{run.path}: exists already and is no run; name another place with --run-dir")
        if not overwrite:
            raise CheckpointError(
                f"{run.path}: exists already; --resume goes on with it, --overwrite starts it anew, "
                "--run-dir names another place"
            )
        replaced = run.path.rename(run.path.with_name(f".{run.path.name}.{os.getpid()}.replaced"))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        write_text(run.config, dump_config(config))
        yield
    except BaseException:
        shutil.rmtree(run.path)
        if replaced is not None:
            replaced.rename(run.path)
        raise
    if replaced is not None:
        shutil.rmtree(replaced)


def train_experiment(config: Config, run: RunDir, progress: Progress, resume: bool, overwrite: bool) -> Outcome:
    """Trains the tokenizer if there is none, prepares the data, trains, and averages if the config says so.

    Raises:
        MtformerError: on anything that the user can mend.
        InterruptedRunError: after a signal, with a checkpoint saved.
    """
    config = resolve_paths(config)
    if not config.data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    device = pick_device(config.training.device)
    precision = pick_precision(_earlier_precision(run, config) if resume else config.training.precision, device)
    keep_freed_memory()
    with prepared_run(run, config, resume, overwrite):
        prepared = prepare_experiment(config, run.tokenizer)
        write_text(run.data_report, prepared.train.report.to_json())
        torch.manual_seed(config.training.seed)
        sizes = prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size
        model = Transformer(config.model, *sizes).to(device)
        trainer = make_trainer(config, run, TrainingStep(model, config.training, precision), prepared, progress)
        if resume:
            trainer.resume()
    parts = ", ".join(f"{name} {count:,}" for name, count in count_parameters(model).items())
    log.info("device %s, precision %s; parameters: %s", device, precision, parts)
    first_step = trainer.position.step
    position = trainer.train()
    was_finished = resume and position.step == first_step
    if config.training.average_last and not (was_finished and run.averaged.is_dir()):
        steps = average_last(run, min(config.training.average_last, len(run.regular_steps())))
        log.info("averaged the checkpoints of steps %s", ", ".join(map(str, steps)))
    return Outcome(position, was_finished)


def _earlier_precision(run: RunDir, config: Config) -> str:
    """What `auto` was picked to be when the run began: picking measures, and could turn out otherwise."""
    steps = run.steps()
    if config.training.precision != "auto" or not steps:
        return config.training.precision
    return str(read_meta(run.checkpoint(steps[-1]))["precision"])


def make_trainer(config: Config, run: RunDir, step: TrainingStep, prepared: Prepared, progress: Progress) -> Trainer:
    """The training loop with its data, its dev set, and its way to decode dev."""

    def batches_from(epoch: int, pairs: int) -> Iterator[Batch]:
        ranks, on_cuda = step.ranks, step.device.type == "cuda"
        return prepared.batches.start(
            epoch, pairs, max_epochs=config.training.max_epochs, rank=ranks.rank, num_ranks=ranks.size, pin=on_cuda
        )

    def dev_batches() -> Iterable[Batch]:
        return prepared.dev_batches(config)

    has_dev = prepared.dev is not None
    decode = decode_dev(config, step.model, prepared) if has_dev else None
    return Trainer(config, run, step, batches_from, dev_batches if has_dev else None, decode, progress)


def decode_dev(config: Config, model: Transformer, prepared: Prepared) -> DecodeDev:
    """A function that translates dev with the model as it stands, and scores it by BLEU and chrF."""
    translator = Translator(model, prepared.tokenizers, config.decoding)
    sources, references = prepared.dev_text()

    def decode() -> Decoded:
        hypotheses = [t.text for t in translator.translate(sources, beam_size=config.decoding.validation_beam_size)]
        scores = score(hypotheses, references, config.evaluation, ("bleu", "chrf"))
        samples = list(zip(sources, references, hypotheses, strict=True))[: config.training.sample_sentences]
        return Decoded({s.name: s.value for s in scores}, samples)

    return decode
