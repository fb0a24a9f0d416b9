"""Preparation of an experiment: train or load the tokenizers, and tokenize the data or read them from the cache.

With `training.init_from`, the tokenizers and the initial weights are those of another run.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mtformer.config.data import CorpusConfig, DataConfig, Source
from mtformer.config.fields import key_metadata
from mtformer.config.languages import has_spaces
from mtformer.config.loading import config_diff, load_config
from mtformer.config.schema import Config
from mtformer.data.batching.augment import Augmentation
from mtformer.data.batching.batches import Batch, TrainingBatches, ordered_batches
from mtformer.data.batching.mixture import Corpus, Mixture
from mtformer.data.check.check import warn_of_layout
from mtformer.data.corpus.sources import file_states, read_pairs, require_sources, require_unchanged, source_fingerprint
from mtformer.data.data_report import DataReport, NormalizedLines
from mtformer.data.store.pairs import Pairs, text_of
from mtformer.data.store.prepare import Advance, log_progress, prepare
from mtformer.data.store.store import Store
from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.decoding.lines.sentences import split_sentences
from mtformer.decoding.loading import style_of_training
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.errors import CheckpointError, ConfigError, explain_write_errors, log, warn_once
from mtformer.evaluation.evaluate import source_set
from mtformer.evaluation.scores import for_language, make_metric
from mtformer.files import (
    CHECKSUMS,
    FileState,
    atomic_folder,
    cache_folder,
    json_sha256,
    unchanged,
    verify,
    write_checksums,
)
from mtformer.model.transformer import Transformer
from mtformer.run_dir import MULTI_SENTENCE_SHARE, TEXT_STYLE, RunDir
from mtformer.text.normalization import Normalizer, rules_of
from mtformer.text.style import TrainingStyle
from mtformer.text.tags import require_tags, tag_id, tags_by_side, target, with_tags
from mtformer.text.tokenizer import JOINT, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer
from mtformer.training.step import TrainingStep
from mtformer.training.trackers import require_tracker

SAMPLED_BLOCKS = 40
"""Number of blocks (10,240 lines in total) in which lines with several sentences are counted."""
UNTRAINED_LENGTH_RATIO = 1.0
"""Maximum `decoding.max_length_ratio` in validations of an untrained model."""


STYLE_PAIRS = 2560
"""Number of pairs in these blocks in which the style of the text is measured."""


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
        parts = self.corpus.name.split(".")[1:]
        return list(itertools.accumulate(parts, "{}.{}".format))


def with_short_outputs(config: Config) -> Config:
    """Return the config with outputs that are hardly longer than the sources.

    An untrained model rarely ends a sentence, so translating with it would otherwise take several times as long as with
    a trained one.
    """
    decoding = config.decoding
    ratio = max(decoding.min_length_ratio, min(decoding.max_length_ratio, UNTRAINED_LENGTH_RATIO))
    return config.with_values({"decoding.max_length_ratio": ratio})


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data for training."""

    tokenizers: TokenizerPair
    corpora: Sequence[Corpus]
    dev: list[DevSet]
    batches: TrainingBatches
    multi_sentence_share: float
    """Share of the source lines in the training data that have several sentences."""
    style: TrainingStyle
    """Style of the training text."""

    def translator(self, config: Config, model: Transformer) -> Translator:
        """Return the translator for validation with a model, which may be in training mode."""
        decoding = config.decoding.for_validation()
        trained_tokens = config.data.filters.max_tokens
        share = self.multi_sentence_share
        return Translator([model], self.tokenizers, decoding, trained_tokens, share, data=config.data)

    def dev_batches(self, config: Config) -> Iterator[Batch]:
        """Yield the batches of each dev set, sorted by length; `pairs_of` has the names of the dev set."""
        max_tokens = config.model.max_positions - 1
        for dev_set in self.dev:
            for batch in ordered_batches(dev_set.corpus, config.training.micro_batch_tokens, max_tokens):
                yield replace(batch, pairs_of=dict.fromkeys(dev_set.names, batch.num_pairs))

    def report(self) -> dict[str, Any]:
        """Return the report on the training data, with a report per corpus if there are several."""
        reports = _reports(self.corpora)
        total = sum(reports.values(), DataReport())
        report = total.to_dict()
        report[MULTI_SENTENCE_SHARE] = self.multi_sentence_share
        report[TEXT_STYLE] = self.style.to_dict()
        if len(reports) > 1:
            report["corpora"] = {name: corpus_report.to_dict() for name, corpus_report in reports.items()}
        return report


def prepare_experiment(config: Config, tokenizer_folder: Path, advance: Advance = log_progress) -> Prepared:
    """Train or load the tokenizers, then tokenize the data or read it from the cache.

    Args:
        config: The experiment.
        tokenizer_folder: Folder of the tokenizers; if it does not exist, trained tokenizers are written to it.
        advance: Function that is called while training corpora are tokenized.

    Raises:
        DataError: For invalid data or tokenizers.
        ConfigError: Without training data, or if tokenizers do not match.
    """
    _check_settings(config)
    _warn_of_noise_without_spaces(config.data)

    if tokenizer_folder.is_dir():
        tokenizers = TokenizerPair.load(tokenizer_folder)
    else:
        tokenizers = make_tokenizers(config, tokenizer_folder)
    tokenizers = with_tags(tokenizers, config.data)

    has_noise = any(config.data.noise.model_dump().values())
    corpora = _training_corpora(config, tokenizers, has_noise, advance)
    dev = _dev_sets(config, tokenizers)
    _log_reports(corpora, dev)
    _warn_of_normalization(corpora, tokenizers)

    batches = _training_batches(config, corpora, tokenizers, has_noise)
    share = multi_sentence_share(batches.mixture.corpora, tokenizers.src)
    style = training_style(batches.mixture.corpora, tokenizers)
    _compare_dev_sets(dev, style, tokenizers, config.data)
    if config.training.init_from is not None:
        _compare_with_pretrained(config.training.init_from, batches.mixture.corpora, tokenizers, config.data)
    return Prepared(tokenizers, corpora, dev, batches, share, style)


def _check_settings(config: Config) -> None:
    """Raise an error for settings and sources that would fail later, possibly after the training."""
    if not config.data.sources:
        raise ConfigError("data.train: no training data; give at least one source")
    has_dev = bool(config.data.dev_sources)
    if config.training.patience is not None and not has_dev:
        raise ConfigError("training.patience needs data.dev; add a dev set, or remove patience")
    for tracker in config.training.trackers:
        require_tracker(tracker)

    require_sources(config.data)
    warn_of_layout(config.data)
    for name, source in config.data.test.items():
        source_set(name, source, config.data)  # reports an unreadable test set before training instead of after it
    if has_dev or config.data.test:
        for tgt_lang in config.data.target_languages:
            make_metric("bleu", for_language(config.evaluation, tgt_lang))  # its tokenizer may not be available


def _warn_of_noise_without_spaces(data: DataConfig) -> None:
    """Log a warning if noise on words is set for a source language without spaces between words."""
    has_word_noise = data.noise.word_dropout or data.noise.typos
    languages = [src for src, _ in data.directions if not has_spaces(src)]
    if languages and has_word_noise:
        log.warning(
            "data.noise: word_dropout and typos need spaces between words; %s has none, so set them to 0",
            languages[0],
        )


def _log_reports(corpora: Sequence[Corpus], dev: Sequence[DevSet]) -> None:
    dev_corpora = [dev_set.corpus for dev_set in dev]
    reports = {**_reports(corpora), **_reports(dev_corpora)}
    for name, report in reports.items():
        for line in report.lines():
            log.info("%s: %s", name, line)


# ---- corpora --------------------------------------------------------------------------------------------------------


def _training_corpora(config: Config, tokenizers: TokenizerPair, keep_text: bool, advance: Advance) -> list[Corpus]:
    """Prepare each training corpus in each of its directions."""
    sections: dict[str, CorpusConfig] = {}
    if config.data.train:
        sections["train"] = CorpusConfig(sources=config.data.train)
    sections |= config.data.corpora

    prepare_sources = partial(prepare, is_training=True, keep_text=keep_text, advance=advance)
    corpora = list[Corpus]()
    for name, section in sections.items():
        section_tags: tuple[int, ...] = ()
        if section.tag is not None:
            section_tags = (tag_id(section.tag, tokenizers.src),)
        for corpus, _ in _in_each_direction(name, section.sources, config.data, tokenizers, prepare_sources):
            tags = corpus.tags + section_tags
            corpora.append(replace(corpus, weight=section.weight, tags=tags))
    return corpora


def _dev_sets(config: Config, tokenizers: TokenizerPair) -> list[DevSet]:
    """Prepare each dev set in each of its directions."""
    prepare_sources = partial(prepare, is_training=False)
    dev = list[DevSet]()
    for name, sources in config.data.dev_sets.items():
        for corpus, tgt_lang in _in_each_direction(name, sources, config.data, tokenizers, prepare_sources):
            src_lines, tgt_lines = text_of(corpus.read())
            dev.append(DevSet(corpus, tgt_lang, src_lines, tgt_lines))
    return dev


class _Direction(NamedTuple):
    """Translation direction in which a corpus is used."""

    src_lang: str
    tgt_lang: str
    is_swapped: bool
    """True if the source language of the corpus is the target language of the direction."""


def _in_each_direction(
    name: str,
    sources: Sequence[Source],
    data: DataConfig,
    tokenizers: TokenizerPair,
    prepare_sources: Callable[[Sequence[Source], DataConfig, TokenizerPair], Store],
) -> Iterator[tuple[Corpus, str]]:
    """Prepare sources; those of the same language pair are prepared together.

    Yields a corpus and its target language for each direction. With several directions, corpus names include them.
    """
    sources_by_languages: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        languages = data.languages(source)
        sources_by_languages.setdefault(languages, []).append(source)

    has_one_direction = len(sources_by_languages) == 1 and not data.both_directions
    for (src_lang, tgt_lang), sources_of_pair in sources_by_languages.items():
        directions = [_Direction(src_lang, tgt_lang, is_swapped=False)]
        if data.both_directions:
            directions.append(_Direction(tgt_lang, src_lang, is_swapped=True))
        targets = [target(data, tokenizers, direction.tgt_lang) for direction in directions]

        store = prepare_sources(sources_of_pair, data, tokenizers)
        for direction, ids in zip(directions, targets, strict=True):
            full_name = name
            if not has_one_direction:
                full_name += f".{direction.src_lang}-{direction.tgt_lang}"
            tags = tuple(ids.tags)
            languages = (direction.src_lang, direction.tgt_lang)
            corpus = Corpus(
                full_name, store, is_swapped=direction.is_swapped, tags=tags, start=ids.start, languages=languages
            )
            yield corpus, direction.tgt_lang


def _training_batches(
    config: Config, corpora: Sequence[Corpus], tokenizers: TokenizerPair, has_noise: bool
) -> TrainingBatches:
    """Return the batches of the training corpora, which noise augments if it is configured."""
    augmentation = None
    if has_noise:
        augmentation = Augmentation(tokenizers, config.data.noise, config.data.filters.max_tokens)
    mixture = Mixture(corpora, config.training.seed, config.data.temperature)
    return TrainingBatches(mixture, config.training.micro_batch_tokens, augmentation)


def _sampled_blocks(corpora: Sequence[Corpus]) -> Iterator[tuple[Corpus, Pairs]]:
    """Yield blocks that are spread evenly over nonempty corpora, each with its corpus."""
    ends = np.cumsum([corpus.store.num_blocks for corpus in corpora])
    num_all_blocks = ends[-1]
    num_samples = min(SAMPLED_BLOCKS, num_all_blocks)
    for block in np.linspace(0, num_all_blocks, num_samples, endpoint=False, dtype=np.int64):
        corpus = corpora[np.searchsorted(ends, block, side="right")]
        block_of_corpus = block % corpus.store.num_blocks
        yield corpus, corpus.read(np.array([block_of_corpus]))


def multi_sentence_share(corpora: Sequence[Corpus], tokenizer: Tokenizer) -> float:
    """Estimate the share of source lines with several sentences."""
    num_lines = 0
    num_multi_sentence = 0
    for _, pairs in _sampled_blocks(corpora):
        lines = tokenizer.decode(pairs["src"].to_pylist())
        num_lines += len(lines)
        for line in lines:
            if len(split_sentences(line)) > 1:
                num_multi_sentence += 1
    return num_multi_sentence / num_lines


def training_style(corpora: Sequence[Corpus], tokenizers: TokenizerPair) -> TrainingStyle:
    """Measure the style of nonempty corpora, in lines as the model sees them, after normalization."""
    style = TrainingStyle()
    blocks = list(_sampled_blocks(corpora))
    for corpus, pairs in blocks:
        first_pairs = pairs.slice(0, STYLE_PAIRS // len(blocks))
        src_lines = tokenizers.src.decode(first_pairs["src"].to_pylist())
        tgt_lines = tokenizers.tgt.decode(first_pairs["tgt"].to_pylist())
        style.add(corpus.languages, src_lines, tgt_lines)
    return style


def _compare_dev_sets(dev: Sequence[DevSet], style: TrainingStyle, tokenizers: TokenizerPair, data: DataConfig) -> None:
    """Log a warning for each dev set whose text is unlike the training text; a set is used in one or two directions."""
    for dev_set in dev:
        if dev_set.corpus.is_swapped:
            continue
        src_watch, tgt_watch = _watches(style, dev_set.corpus.languages, tokenizers, data)
        messages = [
            src_watch.judge(dev_set.sources, "the source text"),
            tgt_watch.judge(dev_set.references, "the target text"),
        ]
        for message in filter(None, messages):
            log.warning("%s: %s", dev_set.corpus.name, message)


def _compare_with_pretrained(path: str, corpora: Sequence[Corpus], tokenizers: TokenizerPair, data: DataConfig) -> None:
    """Log a warning for each corpus whose text is unlike the training text of the run given by `training.init_from`."""
    style = style_of_training(RunDir(path))
    if style is None:
        return
    for corpus in corpora:
        if corpus.is_swapped or not len(corpus.store):
            continue
        src_watch, tgt_watch = _watches(style, corpus.languages, tokenizers, data)
        own_style = training_style([corpus], tokenizers)
        messages = [
            src_watch.judge_counts(own_style.src[corpus.languages[0]], "the source text"),
            tgt_watch.judge_counts(own_style.tgt[corpus.languages[1]], "the target text"),
        ]
        for message in filter(None, messages):
            log.warning("%s: %s (training text: that of %s)", corpus.name, message, path)


def _watches(
    style: TrainingStyle, languages: tuple[str, str], tokenizers: TokenizerPair, data: DataConfig
) -> tuple[InputWatch, InputWatch]:
    """Return the comparison of sources and of targets with the training text in these languages."""
    src_lang, tgt_lang = languages
    accepts_any_case = data.noise.case > 0
    src_training = [style.src[src_lang]] if src_lang in style.src else []
    tgt_training = [style.tgt[tgt_lang]] if tgt_lang in style.tgt else []
    return (
        InputWatch(src_training, tokenizers.src.normalizer, accepts_any_case=accepts_any_case),
        InputWatch(tgt_training, tokenizers.tgt.normalizer, accepts_any_case=accepts_any_case),
    )


def _warn_of_normalization(corpora: Sequence[Corpus], tokenizers: TokenizerPair) -> None:
    """Log a warning if corpora have target lines that the model cannot write, because normalization changes them.

    The targets of a swapped corpus are its source lines.
    """
    changed_of: dict[Normalizer, dict[str, NormalizedLines]] = {}
    """Lines of each corpus with a warning, by its name."""
    for corpus in corpora:
        side = "src" if corpus.is_swapped else "tgt"
        lines = corpus.store.report.normalized[side]
        normalizer = tokenizers.src.normalizer if corpus.is_swapped else tokenizers.tgt.normalizer
        if normalizer.warning(lines.changed, lines.examined, lines.examples, "") is not None:
            changed_of.setdefault(normalizer, {})[corpus.name] = lines

    for normalizer, lines_of in changed_of.items():
        num_changed = sum(lines.changed for lines in lines_of.values())
        num_examined = sum(lines.examined for lines in lines_of.values())
        first_lines, *_ = lines_of.values()
        subject = f"target lines of {', '.join(lines_of)}"
        message = normalizer.warning(num_changed, num_examined, first_lines.examples, subject)
        warn_once("normalization", "%s", message)


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
        tokenizers = _pretrained_tokenizers(config)
    elif section.joint:
        joint = _load_or_train(config, section.src_model, sides=(0, 1))
        tokenizers = TokenizerPair(joint, joint)
    else:
        src = _load_or_train(config, section.src_model, sides=(0,))
        tgt = _load_or_train(config, section.tgt_model, sides=(1,))
        tokenizers = TokenizerPair(src, tgt)

    for tags, tokenizer in zip(tags_by_side(config.data), tokenizers, strict=True):
        require_tags([*tags, *section.user_symbols], tokenizer)
    with explain_write_errors(f"{folder}: the tokenizer", "choose another folder"):
        tokenizers.save(folder)
    return tokenizers


def _load_or_train(config: Config, model: str | None, sides: tuple[int, ...]) -> Tokenizer:
    """Load a tokenizer, or train one, which is kept in the cache.

    Args:
        config: The experiment.
        model: File of an existing tokenizer; None: train one.
        sides: Sides of the training data that the tokenizer is trained on: 0 for source, 1 for target.
    """
    if model is not None:
        return Tokenizer.load(model)

    data = config.data
    states = file_states(data.sources)
    tags_of_both_sides = itertools.chain(*tags_by_side(data))
    tags = list(dict.fromkeys(tags_of_both_sides))
    settings = _training_settings(config, sides, tags)
    settings_hash = json_sha256(settings)[:32]
    folder = cache_folder(data.cache_dir) / f"tokenizer-{settings_hash}"
    cached = _load_from_cache(folder)
    if cached is not None:
        return cached

    lines = _lines(data, sides, states)
    remedy = "set data.cache_dir to another folder"
    with explain_write_errors(f"{folder.parent}: the tokenizer", remedy), atomic_folder(folder) as temporary:
        train_tokenizer(lines, config.tokenizer, temporary / JOINT, tags)
        write_checksums(temporary)
    return Tokenizer.load(folder / JOINT)


def _training_settings(config: Config, sides: tuple[int, ...], tags: Sequence[str]) -> dict[str, Any]:
    """Return everything that determines a trained tokenizer."""
    rules = rules_of(config.tokenizer)
    normalization: list[str | None] = [config.tokenizer.normalization, None]
    if rules:  # the contents of a rule file count, not its path
        normalization = [None, hashlib.sha256(rules).hexdigest()]

    not_of_training = {"src_model", "tgt_model", "joint", "normalization"}
    tokenizer = config.tokenizer.model_dump(exclude=not_of_training)
    sources = [source_fingerprint(source, config.data) for source in config.data.sources]
    settings: dict[str, Any] = {
        "sentencepiece": version("sentencepiece"),
        "sources": sources,
        "sides": sides,
        "tokenizer": tokenizer,
        "normalization": normalization,
    }
    if tags:
        settings["tags"] = tags
    return settings


def _load_from_cache(folder: Path) -> Tokenizer | None:
    """Load a tokenizer from the cache; None if it is missing or damaged."""
    try:
        with unchanged(folder / JOINT):
            verify(folder, JOINT, listing=CHECKSUMS)
            tokenizer = Tokenizer.load(folder / JOINT)
    except CheckpointError:
        return None
    log.info("tokenizer: already trained, loaded from %s", folder)
    return tokenizer


def _lines(data: DataConfig, sides: tuple[int, ...], states: dict[str, FileState]) -> Iterator[str]:
    """Yield the lines of some sides of the training data, whose files must be in the given states until the end."""
    for source in data.sources:
        for pair in read_pairs(source, data):
            yield from (pair[side] for side in sides)
    require_unchanged(data.sources, states)


# ---- training.init_from ---------------------------------------------------------------------------------------------


def _pretrained_tokenizers(config: Config) -> TokenizerPair:
    """Return the tokenizers of the run given by `training.init_from`, which must have the same settings."""
    base = _open_pretrained(config)
    base_config = load_config(base.config).config
    differences: list[str] = []
    for key, before, after in sorted(config_diff(base_config, config)):  # model before tokenizer
        if _must_be_equal(key, base_config, config):
            differences.append(f"{key} {before!r} (here {after!r})")
    if differences:
        raise ConfigError(
            f"training.init_from: {base.path} has {', '.join(differences)}; leave these keys out, or give them the "
            "values of that run"
        )
    return TokenizerPair.load(base.tokenizer)


def _must_be_equal(key: str, base: Config, config: Config) -> bool:
    """Return True if a key must have the value that it has in the pretrained run."""
    if not key.startswith(("model.", "tokenizer.")):
        return False
    if key_metadata(key).on_resume != "refuse":
        return False
    if key in ("tokenizer.src_model", "tokenizer.tgt_model"):
        return False  # the model is copied, so its path does not matter
    if key == "model.max_positions":
        return config.model.positions == "learned"  # other positions have no weights
    if key == "tokenizer.normalization":  # a copy of a rule file has another path
        base_name = os.path.basename(base.tokenizer.normalization)
        return base_name != os.path.basename(config.tokenizer.normalization)
    return True


def load_pretrained(config: Config, tokenizers: TokenizerPair, step: TrainingStep) -> None:
    """Load the weights of the run given by `training.init_from` into a new model.

    Args:
        config: The experiment.
        tokenizers: Its tokenizers.
        step: The new model.

    Raises:
        ConfigError: If the run does not exist, or its tokenizer differs from the current one.
        CheckpointError: If its weights are missing, damaged, or have different shapes.
    """
    base = _open_pretrained(config)
    base_config = load_config(base.config).config
    base_tokenizers = TokenizerPair.load(base.tokenizer)
    base_hashes = [tokenizer.sha256 for tokenizer in base_tokenizers]
    own_hashes = [tokenizer.sha256 for tokenizer in tokenizers]
    if own_hashes != base_hashes:
        raise ConfigError(
            f"training.init_from: the tokenizer of {base.path} differs from the tokenizer of this run; start over with "
            "--overwrite"
        )

    [path] = find_weights(base, None, base_config.training.best_metric)
    with verified_weights(base, [path]):
        step.load_weights(path)
    log.info("initializing the weights from %s", path)


def _open_pretrained(config: Config) -> RunDir:
    """Open the run given by `training.init_from`."""
    assert config.training.init_from is not None
    try:
        return RunDir.open(config.training.init_from)
    except CheckpointError as error:
        raise ConfigError(f"training.init_from: {error}") from error
