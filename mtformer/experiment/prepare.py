"""Preparation of an experiment: train or load the tokenizers, and tokenize the data or read them from the cache.

With `training.init_from`, the tokenizers and the initial weights are those of another run.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import CorpusConfig, DataConfig, Source
from mtformer.config.fields import key_metadata
from mtformer.config.languages import WITHOUT_SPACES, base_code
from mtformer.config.loading import config_diff, load_config
from mtformer.config.schema import Config
from mtformer.data.batching.augment import Augmentation
from mtformer.data.batching.batches import Batch, TrainingBatches, ordered_batches
from mtformer.data.batching.mixture import WINDOW_PAIRS, Corpus, Mixture
from mtformer.data.corpus.sources import file_states, read_pairs, require_sources, require_unchanged, source_fingerprint
from mtformer.data.data_report import DataReport
from mtformer.data.store.pairs import text_of
from mtformer.data.store.prepare import Advance, log_progress, prepare
from mtformer.decoding.lines.sentences import split_sentences
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.errors import CheckpointError, ConfigError, explain_write_errors, log, require_extra
from mtformer.evaluation.evaluate import source_set
from mtformer.evaluation.scores import for_language, make_metric
from mtformer.files import CHECKSUMS, atomic_folder, cache_folder, json_sha256, unchanged, verify, write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.normalization import rules_of
from mtformer.text.tags import require_tags, tag_id, tags_by_side, target, with_tags
from mtformer.text.tokenizer import JOINT, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer
from mtformer.training.step import TrainingStep

SAMPLED_BLOCKS = 40
"""Number of blocks (10,240 lines in total) in which lines with several sentences are counted."""
AUGMENTED_WINDOW_PAIRS = 1 << 14
"""Window size with augmentation; it is small, because the first batch waits for a window to be augmented."""


@dataclass(frozen=True)
class DevSet:
    """Dev data for one translation direction."""

    corpus: Corpus
    tgt_lang: str
    sources: list[str]
    references: list[str]

    @property
    def names(self) -> list[str]:
        """Return the names in its metrics, such as `news`, `en-de`, or `news` and `news.en-de`; see `dev_names`."""
        return list(itertools.accumulate(self.corpus.name.split(".")[1:], "{}.{}".format))


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data for training."""

    tokenizers: TokenizerPair
    corpora: Sequence[Corpus]
    dev: list[DevSet]
    batches: TrainingBatches
    multi_sentence_share: float
    """Share of the source lines in the training data that have several sentences."""

    def translator(self, config: Config, model: Transformer) -> Translator:
        """Return the translator for validation with a model, which may be in training mode."""
        decoding, trained_tokens = config.decoding.for_validation(), config.data.filters.max_tokens
        share = self.multi_sentence_share
        return Translator([model], self.tokenizers, decoding, trained_tokens, share, data=config.data)

    def dev_batches(self, config: Config) -> Iterator[Batch]:
        """Yield the batches of each dev set, sorted by length; `pairs_of` has the names of the dev set."""
        for one in self.dev:
            max_tokens = config.model.max_positions - 1
            for batch in ordered_batches(one.corpus, config.training.micro_batch_tokens, max_tokens):
                yield replace(batch, pairs_of=dict.fromkeys(one.names, batch.num_pairs))

    def report(self) -> dict[str, Any]:
        """Return the report on the training data, with a report per corpus if there are several."""
        by_name = _reports(self.corpora)
        total = sum(by_name.values(), DataReport()).to_dict() | {MULTI_SENTENCE_SHARE: self.multi_sentence_share}
        return total if len(by_name) == 1 else {**total, "corpora": {n: one.to_dict() for n, one in by_name.items()}}


def prepare_experiment(config: Config, tokenizer_folder: Path, advance: Advance = log_progress) -> Prepared:
    """Train or load the tokenizers, then tokenize the data or read it from the cache.

    Trained tokenizers are written to `tokenizer_folder`. `advance` is called while training corpora are tokenized.
    Raise DataError for invalid data or tokenizers, ConfigError without training data or if tokenizers do not match.
    """
    if not config.data.sources:
        raise ConfigError("data.train: no training data; give at least one source")
    if config.training.patience is not None and not config.data.dev_sources:
        raise ConfigError("training.patience needs data.dev; add a dev set, or remove patience")
    if config.training.tensorboard:
        require_extra("training.tensorboard", "tensorboard", "tensorboard")
    require_sources(config.data)
    for name, source in config.data.test.items():
        source_set(name, source, config.data)  # reports an unreadable test set before training instead of after it
    for tgt_lang in config.data.target_languages if config.data.dev_sources or config.data.test else ():
        make_metric("bleu", for_language(config.evaluation, tgt_lang))  # its tokenizer may not be available
    noise, unspaced = config.data.noise, [src for src, _ in config.data.directions if base_code(src) in WITHOUT_SPACES]
    if unspaced and (noise.word_dropout or noise.typos):
        log.warning("data.noise: word_dropout and typos need spaces between words; %s has none", unspaced[0])
    exists = tokenizer_folder.is_dir()
    tokenizers = TokenizerPair.load(tokenizer_folder) if exists else make_tokenizers(config, tokenizer_folder)
    tokenizers = with_tags(tokenizers, config.data)
    needs_text = any(config.data.noise.model_dump().values())
    corpora = _training_corpora(config, tokenizers, needs_text, advance)
    dev = [
        DevSet(corpus, tgt_lang, *text_of(corpus.read()))
        for name, sources in config.data.dev_sets.items()
        for corpus, tgt_lang in _in_each_direction(name, sources, config, tokenizers, is_training=False)
    ]
    for name, report in {**_reports(corpora), **_reports([one.corpus for one in dev])}.items():
        for line in report.lines():
            log.info("%s: %s", name, line)
    _warn_of_normalization(corpora, tokenizers)
    augmentation, window_pairs = None, WINDOW_PAIRS
    if needs_text:
        augmentation = Augmentation(tokenizers, config.data.noise, config.data.filters.max_tokens)
        window_pairs = AUGMENTED_WINDOW_PAIRS
    mixture = Mixture(corpora, config.training.seed, config.data.temperature, window_pairs)
    batches = TrainingBatches(mixture, config.training.micro_batch_tokens, augmentation)
    return Prepared(tokenizers, corpora, dev, batches, multi_sentence_share(mixture.corpora, tokenizers.src))


# ---- corpora --------------------------------------------------------------------------------------------------------


def _training_corpora(config: Config, tokenizers: TokenizerPair, keep_text: bool, advance: Advance) -> list[Corpus]:
    """Prepare each training corpus in each of its directions."""
    sections: dict[str, CorpusConfig] = dict(config.data.corpora)
    if config.data.train:
        sections = {"train": CorpusConfig(sources=config.data.train), **sections}
    corpora = list[Corpus]()
    for name, section in sections.items():
        tags = [tag_id(section.tag, tokenizers.src)] if section.tag is not None else []
        for corpus, _ in _in_each_direction(
            name, section.sources, config, tokenizers, is_training=True, keep_text=keep_text, advance=advance
        ):
            corpora.append(replace(corpus, weight=section.weight, tags=(*corpus.tags, *tags)))
    return corpora


def _in_each_direction(
    name: str, sources: Sequence[Source], config: Config, tokenizers: TokenizerPair, **options: Any
) -> Iterator[tuple[Corpus, str]]:
    """Prepare sources with the options of `prepare`; sources of the same language pair are prepared together.

    Yields a corpus and its target language for each direction. With several directions, corpus names include them.
    """
    data, by_languages = config.data, dict[tuple[str, str], list[Source]]()
    for source in sources:
        by_languages.setdefault(data.languages(source), []).append(source)
    is_alone = len(by_languages) == 1 and not data.both_directions
    for (src, tgt), some in by_languages.items():
        directions = [(src, tgt, False), (tgt, src, True)][: 1 + data.both_directions]
        targets = [target(data, tokenizers, to) for _, to, _ in directions]
        store = prepare(some, data, tokenizers, **options)
        for (from_, to, is_swapped), ids in zip(directions, targets, strict=True):
            full_name = name if is_alone else f"{name}.{from_}-{to}"
            yield Corpus(full_name, store, is_swapped=is_swapped, tags=tuple(ids.tags), start=ids.start), to


def multi_sentence_share(corpora: Sequence[Corpus], tokenizer: Tokenizer) -> float:
    """Estimate the share of source lines with several sentences, from blocks spread evenly over nonempty corpora."""
    ends = np.cumsum([corpus.store.num_blocks for corpus in corpora])
    num_lines = num_found = 0
    for block in np.linspace(0, ends[-1], min(SAMPLED_BLOCKS, ends[-1]), endpoint=False, dtype=np.int64):
        corpus = corpora[np.searchsorted(ends, block, side="right")]
        pairs = corpus.read(np.array([block % corpus.store.num_blocks]))
        lines = tokenizer.decode(pairs["src"].to_pylist())
        num_lines += len(lines)
        num_found += sum(len(split_sentences(line)) > 1 for line in lines)
    return num_found / num_lines


def _warn_of_normalization(corpora: Sequence[Corpus], tokenizers: TokenizerPair) -> None:
    """Log a warning for each corpus with target lines that the model cannot write, because normalization changes them.

    The targets of a swapped corpus are its source lines.
    """
    for corpus in corpora:
        side = "src" if corpus.is_swapped else "tgt"
        lines = corpus.store.report.normalized[side]
        normalizer = tokenizers.src.normalizer if corpus.is_swapped else tokenizers.tgt.normalizer
        message = normalizer.warning(lines.changed, lines.examined, lines.examples, f"target lines of {corpus.name}")
        if message is not None:
            log.warning("%s", message)


def _reports(corpora: Sequence[Corpus]) -> Mapping[str, DataReport]:
    """Return the data report of each corpus by name, without reversed corpora."""
    return {corpus.name: corpus.store.report for corpus in corpora if not corpus.is_swapped}


# ---- tokenizers -----------------------------------------------------------------------------------------------------


def make_tokenizers(config: Config, folder: Path) -> TokenizerPair:
    """Write the tokenizers of an experiment to a folder: those given in the config, or ones trained on its data.

    Raise DataError for invalid data or models, or a read-only folder, ConfigError if models do not fit the config.
    """
    section = config.tokenizer
    if config.training.init_from is not None:
        pair = _pretrained_tokenizers(config)
    else:
        src = _tokenizer(config, section.src_model, (0, 1) if section.joint else (0,))
        pair = TokenizerPair(src, src if section.joint else _tokenizer(config, section.tgt_model, (1,)))
    for tags, tokenizer in zip(tags_by_side(config.data), pair, strict=True):
        require_tags([*tags, *section.user_symbols], tokenizer)
    with explain_write_errors(f"{folder}: the tokenizer", "choose another folder"):
        pair.save(folder)
    return pair


def _tokenizer(config: Config, existing: str | None, sides: tuple[int, ...]) -> Tokenizer:
    """Load an existing model, or else one trained on these sides of the training data, which is kept in the cache."""
    if existing is not None:
        return Tokenizer.load(existing)
    section = config.tokenizer
    tags = list(dict.fromkeys(itertools.chain(*tags_by_side(config.data))))
    data, states = config.data, file_states(config.data.sources)
    rules = rules_of(section)
    settings = {
        "sentencepiece": version("sentencepiece"),
        "sources": [source_fingerprint(source, data) for source in data.sources],
        "sides": sides,
        "tokenizer": section.model_dump(exclude={"src_model", "tgt_model", "joint", "normalization"}),
        "normalization": [None, hashlib.sha256(rules).hexdigest()] if rules else [section.normalization, None],
    }
    if tags:
        settings["tags"] = tags
    folder = cache_folder(data.cache_dir) / f"tokenizer-{json_sha256(settings)[:32]}"
    try:
        with unchanged(folder / JOINT):
            verify(folder, JOINT, listing=CHECKSUMS)
            tokenizer = Tokenizer.load(folder / JOINT)
        log.info("tokenizer: already trained, loaded from %s", folder)
        return tokenizer
    except CheckpointError:  # missing or damaged
        what = f"{folder.parent}: the tokenizer"
        with explain_write_errors(what, "set data.cache_dir to another folder"), atomic_folder(folder) as temporary:
            train_tokenizer(_text(data, sides, states), section, temporary / JOINT, tags)
            write_checksums(temporary)
    return Tokenizer.load(folder / JOINT)


def _text(data: DataConfig, sides: tuple[int, ...], states: dict[str, tuple[int, int, int]]) -> Iterator[str]:
    for pair in itertools.chain.from_iterable(read_pairs(source, data) for source in data.sources):
        yield from (pair[side] for side in sides)
    require_unchanged(data.sources, states)


# ---- training.init_from ---------------------------------------------------------------------------------------------


def _pretrained_tokenizers(config: Config) -> TokenizerPair:
    """Return the tokenizers of the run given by `training.init_from`, which must have the same settings."""
    base, its = _pretrained_run(config)
    ignored = {"tokenizer.src_model", "tokenizer.tgt_model"}  # the model is copied, so its path does not matter
    if config.model.positions != "learned":  # other positions have no weights
        ignored.add("model.max_positions")
    normalizations = [os.path.basename(one.tokenizer.normalization) for one in (its, config)]
    if normalizations[0] == normalizations[1]:  # a copy of a rule file has another path
        ignored.add("tokenizer.normalization")
    different = [
        f"{key} {before!r} (here {after!r})"
        for key, before, after in sorted(config_diff(its, config))  # model before tokenizer
        if key.startswith(("model.", "tokenizer.")) and key not in ignored and key_metadata(key).on_resume == "refuse"
    ]
    if different:
        raise ConfigError(f"training.init_from: {base.path} has {', '.join(different)}; leave these keys out")
    return TokenizerPair.load(base.tokenizer)


def load_pretrained(config: Config, tokenizers: TokenizerPair, step: TrainingStep) -> None:
    """Load the weights of the run given by `training.init_from` into a new model.

    Raise ConfigError if the run does not exist or its tokenizer differs from the current one, CheckpointError if its
    weights are missing, damaged, or have different shapes.
    """
    base, its = _pretrained_run(config)
    theirs = TokenizerPair.load(base.tokenizer)
    if [one.sha256 for one in theirs] != [one.sha256 for one in tokenizers]:
        raise ConfigError(f"training.init_from: {base.path} has another tokenizer; start over with --overwrite")
    [path] = find_weights(base, None, its.training.best_metric)
    with verified_weights(base, [path]):
        step.load_weights(path)
    log.info("initializing the weights from %s", path)


def _pretrained_run(config: Config) -> tuple[RunDir, Config]:
    assert config.training.init_from is not None
    try:
        base = RunDir.open(config.training.init_from)
    except CheckpointError as error:
        raise ConfigError(f"training.init_from: {error}") from error
    return base, load_config(base.config).config
