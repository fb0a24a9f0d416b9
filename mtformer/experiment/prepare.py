"""Tokenizer and data of an experiment, made or found."""

import itertools
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtformer.config.schema import Config
from mtformer.data.batches import Batch, TrainingBatches, ordered_batches
from mtformer.data.sources import read_pairs
from mtformer.data.store import Ints, Store, prepare
from mtformer.errors import ConfigError
from mtformer.evaluation.evaluate import source_set
from mtformer.experiment.initial import initial_tokenizers
from mtformer.rundir import atomic_folder
from mtformer.text.tokenizer import JOINT, SRC, TGT, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Prepared:
    """All that training needs of text and data."""

    tokenizers: TokenizerPair
    train: Store
    dev: Store | None
    batches: TrainingBatches

    def dev_batches(self, config: Config) -> Iterator[Batch]:
        """Dev once, by length."""
        assert self.dev is not None
        return ordered_batches(self.dev, config.training.batch_tokens, config.model.max_positions - 1)

    def dev_text(self) -> tuple[list[str], list[str]]:
        """Sources and references of dev; none without dev."""
        return self.dev.text(range(len(self.dev))) if self.dev is not None else ([], [])

    def trial_batches(self) -> list[Batch]:
        """Two batches of the first epoch: the one with the most cells, and the one with the longest pair.

        What attention holds grows with the square of the length.
        """
        plan = self.batches.plan(0)
        cells, longest = self._sizes(plan)
        numbers = dict.fromkeys((int(cells.argmax()), int(longest.argmax())))
        return [self.batches.make(plan[number], 0, number) for number in numbers]

    def mean_cells(self) -> float:
        """Cells of a batch, padding counted, on average."""
        return float(self._sizes(self.batches.plan(0))[0].mean())

    def _sizes(self, plan: list[Ints]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cells and longest side of each batch."""
        longest_side = np.maximum(self.train.src_lengths, self.train.tgt_lengths)
        longest = np.array([longest_side[indices].max() + 1 for indices in plan], dtype=np.int64)
        return longest * np.array([len(indices) for indices in plan]), longest


def prepare_experiment(config: Config, tokenizer_folder: Path) -> Prepared:
    """Trains or loads the tokenizers (into `tokenizer_folder`), then tokenises the data or finds it in the cache.

    Raises:
        DataError: when data or tokenizer models are not as they should be.
        ConfigError: when the tokenizers do not fit the config.
    """
    for name, source in config.data.test.items():
        source_set(name, source, config.data)  # a test set that cannot be read is told now, not after the training
    exists = tokenizer_folder.is_dir()
    tokenizers = TokenizerPair.load(tokenizer_folder) if exists else make_tokenizers(config, tokenizer_folder)
    if tokenizers.joint != config.tokenizer.joint:
        raise ConfigError(f"tokenizer.joint is {config.tokenizer.joint}, but {tokenizer_folder} holds the other kind")
    training, alpha = config.training, config.tokenizer.sampling_alpha
    store = prepare(config.data.train, config.data, tokenizers, is_training=True, keep_text=alpha > 0)
    dev = prepare(config.data.dev, config.data, tokenizers, is_training=False) if config.data.dev else None
    for name, one in (("train", store), ("dev", dev)):
        for line in one.report.lines() if one is not None else ():
            log.info("%s: %s", name, line)
    longest = config.data.filters.max_tokens
    batches = TrainingBatches(store, training.batch_tokens, training.seed, tokenizers, alpha, longest)
    return Prepared(tokenizers, store, dev, batches)


def make_tokenizers(config: Config, folder: Path) -> TokenizerPair:
    """Puts the tokenizers of an experiment into a folder: those the config names, or newly trained ones."""
    section = config.tokenizer
    if config.training.init_from is not None:
        tokenizers = initial_tokenizers(config)
        tokenizers.save(folder)
        return tokenizers
    with atomic_folder(folder) as temporary:
        if section.joint:
            _make_one(config, section.src_model, (0, 1), temporary / JOINT)
        else:
            _make_one(config, section.src_model, (0,), temporary / SRC)
            _make_one(config, section.tgt_model, (1,), temporary / TGT)
    return TokenizerPair.load(folder)


def _make_one(config: Config, existing: str | None, sides: tuple[int, ...], path: Path) -> None:
    if existing is not None:
        Tokenizer.load(existing)  # says what is wrong with it, if anything is
        shutil.copyfile(existing, path)
        return
    log.info("training a %s tokenizer of %d pieces", config.tokenizer.model_type, config.tokenizer.vocab_size)
    train_tokenizer(_text(config, sides), config.tokenizer, path)


def _text(config: Config, sides: tuple[int, ...]) -> Iterator[str]:
    for pair in itertools.chain.from_iterable(read_pairs(source, config.data) for source in config.data.train):
        yield from (pair[side] for side in sides)
