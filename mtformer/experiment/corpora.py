"""The prepared corpora of a config, with their weights, tags and languages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtformer.config.data import CorpusConfig, DataConfig, Source
from mtformer.config.schema import Config
from mtformer.data.batching.mixture import Corpus
from mtformer.data.corpus.sources import languages
from mtformer.data.data_report import DataReport
from mtformer.data.store.prepare import Advance, prepare
from mtformer.text.tags import tag_id, target
from mtformer.text.tokenizer import TokenizerPair

TRAIN, DEV = "train", "dev"


@dataclass(frozen=True)
class DevSet:
    """Dev in one direction."""

    corpus: Corpus
    tgt_lang: str
    sources: list[str]
    references: list[str]


def training_corpora(config: Config, tokenizers: TokenizerPair, advance: Advance) -> list[Corpus]:
    """Prepare each training corpus in each of its directions; `advance` is called while it is tokenized.

    Raises:
        DataError, ConfigError: when data or tokenizers are not as they should be.
    """
    keep_text, corpora = needs_text(config), list[Corpus]()
    sections: dict[str, CorpusConfig] = dict(config.data.corpora)
    if config.data.train:
        sections = {TRAIN: CorpusConfig(sources=config.data.train), **sections}
    for name, section in sections.items():
        own = [tag_id(section.tag, tokenizers.src)] if section.tag is not None else []
        for one in _in_each_direction(name, section.sources, config.data):
            asked = target(config.data, tokenizers, one.tgt_lang)
            store = prepare(
                one.sources, config.data, tokenizers, is_training=True, keep_text=keep_text, advance=advance
            )
            weights, tags = tuple(section.weights), (*asked.tags, *own)
            corpora.append(Corpus(one.name, store, weights, one.is_swapped, tags, asked.start))
    return corpora


def needs_text(config: Config) -> bool:
    """Return whether each epoch changes the pairs, see `Changes`."""
    return config.tokenizer.sampling_alpha > 0 or any(config.data.noise.model_dump().values())


def dev_sets(config: Config, tokenizers: TokenizerPair) -> list[DevSet]:
    """Dev in each of its directions; none without dev."""
    sets = []
    for one in _in_each_direction(DEV, config.data.dev, config.data):
        asked = target(config.data, tokenizers, one.tgt_lang)
        store = prepare(one.sources, config.data, tokenizers, is_training=False)
        corpus = Corpus(one.name, store, is_swapped=one.is_swapped, tags=tuple(asked.tags), start=asked.start)
        pairs = store.read_all()
        sets.append(DevSet(corpus, one.tgt_lang, *(pairs.swapped() if one.is_swapped else pairs).text()))
    return sets


def reports(corpora: Sequence[Corpus]) -> Mapping[str, DataReport]:
    """Return the report of each corpus by name, without those that are another one reversed."""
    return {corpus.name: corpus.store.report for corpus in corpora if not corpus.is_swapped}


@dataclass(frozen=True)
class _Direction:
    name: str
    sources: list[Source]
    tgt_lang: str
    is_swapped: bool = False


def _in_each_direction(name: str, sources: Sequence[Source], data: DataConfig) -> list[_Direction]:
    """The sources by their languages; the direction is part of the name where there are several."""
    by_languages: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        by_languages.setdefault(languages(source, data), []).append(source)
    found = []
    for (src, tgt), some in by_languages.items():
        is_alone = len(by_languages) == 1 and not data.both_directions
        found.append(_Direction(name if is_alone else f"{name}.{src}-{tgt}", some, tgt))
        if data.both_directions:
            found.append(_Direction(f"{name}.{tgt}-{src}", some, src, is_swapped=True))
    return found
