"""Tokenizer and data of an experiment, made or found."""

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtformer.config.schema import Config
from mtformer.data.batching.augment import Augmentation
from mtformer.data.batching.batches import Batch, TrainingBatches, ordered_batches
from mtformer.data.batching.mixture import WINDOW_PAIRS, Corpus, Mixture
from mtformer.data.corpus.sources import file_states, read_pairs, require_sources, require_unchanged
from mtformer.data.data_report import DataReport
from mtformer.data.store.prepare import Advance, log_progress
from mtformer.errors import ConfigError, told_writing
from mtformer.evaluation.evaluate import source_set
from mtformer.experiment.corpora import DevSet, dev_sets, needs_text, reports, training_corpora
from mtformer.experiment.pretrained import pretrained_tokenizers
from mtformer.files import atomic_folder
from mtformer.text.tags import require_tags, source_tags, target_tags
from mtformer.text.tokenizer import JOINT, SRC, TGT, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

AUGMENTED_WINDOW_PAIRS = 1 << 14
"""Text is augmented and tokenized a window at a time, and the first batch waits for that."""
log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Prepared:
    """All that training needs of text and data."""

    tokenizers: TokenizerPair
    corpora: Sequence[Corpus]
    dev: list[DevSet]
    batches: TrainingBatches

    def dev_batches(self, config: Config) -> Iterator[Batch]:
        """Each dev set once, by length."""
        for one in self.dev:
            yield from ordered_batches(one.corpus, config.training.batch_tokens, config.model.max_positions - 1)

    def report(self) -> dict[str, Any]:
        """Return what was read for training and left out; by corpus too where there are several."""
        by_name = reports(self.corpora)
        total = sum(by_name.values(), DataReport()).to_dict()
        return total if len(by_name) == 1 else {**total, "corpora": {n: one.to_dict() for n, one in by_name.items()}}


def prepare_experiment(config: Config, tokenizer_folder: Path, advance: Advance = log_progress) -> Prepared:
    """Train or load the tokenizers (into `tokenizer_folder`), then tokenize the data or find it in the cache.

    `advance` is called while training corpora are tokenized.

    Raises:
        DataError: when data or tokenizer models are not as they should be.
        ConfigError: when the tokenizers do not fit the config.
    """
    require_sources(config.data)
    for name, source in config.data.test.items():
        source_set(name, source, config.data)  # a test set that cannot be read is told now, not after the training
    exists = tokenizer_folder.is_dir()
    tokenizers = TokenizerPair.load(tokenizer_folder) if exists else make_tokenizers(config, tokenizer_folder)
    if tokenizers.joint != config.tokenizer.joint:
        raise ConfigError(f"tokenizer.joint is {config.tokenizer.joint}, but {tokenizer_folder} holds the other kind")
    corpora = training_corpora(config, tokenizers, advance)
    dev = dev_sets(config, tokenizers)
    for name, report in {**reports(corpora), **reports([one.corpus for one in dev])}.items():
        for line in report.lines():
            log.info("%s: %s", name, line)
    augmentation, window_pairs = None, WINDOW_PAIRS
    if needs_text(config):
        augmentation = Augmentation(
            tokenizers, config.tokenizer.sampling_alpha, config.data.noise, config.data.filters.max_tokens
        )
        window_pairs = AUGMENTED_WINDOW_PAIRS
    mixture = Mixture(corpora, config.training.seed, config.data.temperature, window_pairs)
    batches = TrainingBatches(mixture, config.training.batch_tokens, augmentation)
    return Prepared(tokenizers, corpora, dev, batches)


def make_tokenizers(config: Config, folder: Path) -> TokenizerPair:
    """Puts the tokenizers of an experiment into a folder: those the config names, or newly trained ones.

    Raises:
        DataError: when data or models are not as they should be, or the folder cannot be written.
        ConfigError: when models that are there already do not fit the config.
    """
    section = config.tokenizer
    with told_writing(f"{folder}: the tokenizer", "name another place"):
        if config.training.init_from is not None:
            tokenizers = pretrained_tokenizers(config)
            require_tags(source_tags(config.data), tokenizers.src)
            require_tags(target_tags(config.data), tokenizers.tgt)
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
    tags = [source_tags(config.data), target_tags(config.data)]
    if existing is not None:
        tokenizer = Tokenizer.load(existing)  # says what is wrong with it, if anything is
        for side in sides:
            require_tags(tags[side], tokenizer)
        path.write_bytes(tokenizer.model)
        return
    symbols = [*config.tokenizer.user_symbols, *tags[0], *tags[1]]
    section = config.tokenizer.model_copy(update={"user_symbols": list(dict.fromkeys(symbols))})
    train_tokenizer(_text(config, sides), section, path)


def _text(config: Config, sides: tuple[int, ...]) -> Iterator[str]:
    states = file_states(config.data.sources)
    for pair in itertools.chain.from_iterable(read_pairs(source, config.data) for source in config.data.sources):
        yield from (pair[side] for side in sides)
    require_unchanged(config.data.sources, states)
