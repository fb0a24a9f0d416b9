"""The `data` section: sources, corpora, filters, limits and noise."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mtformer.config.languages import Language
from mtformer.config.section import Count, Fraction, Key, Positive, Section, Share, TagPiece, TestName


class _Source(Section):
    """Keys of all kinds of sources."""

    src_lang: Language | None = None
    """Code of the source language, where it is not `data.src_lang`."""
    tgt_lang: Language | None = None
    """Code of the target language, where it is not `data.tgt_lang`."""


class TextFiles(_Source):
    """Two parallel text files, one sentence a line; `.gz`, `.xz` and `.zst` are read as they are."""

    src: Annotated[str, Key(path="file")]
    """File of source sentences."""
    tgt: Annotated[str, Key(path="file")]
    """File of target sentences, with the same number of lines."""


class TsvFile(_Source):
    """One tab-separated file."""

    tsv: Annotated[str, Key(path="file")]
    """The file; `.gz`, `.xz` and `.zst` are read as they are."""
    src_column: Positive = 1
    """Column of the source sentence, counted from 1 as `cut -f` does."""
    tgt_column: Positive = 2
    """Column of the target sentence, counted from 1."""


class JsonlFile(_Source):
    """One JSON object a line."""

    jsonl: Annotated[str, Key(path="file")]
    """The file; `.gz`, `.xz` and `.zst` are read as they are."""
    src_field: str | None = None
    """Field of the source, dots for nesting; default `translation.LANG`, else `LANG`."""
    tgt_field: str | None = None
    """Field of the target, dots for nesting; default `translation.LANG`, else `LANG`."""


class HubDataset(_Source):
    """A Hugging Face data set: a name on the hub or a local folder."""

    dataset: Annotated[str, Key(path="folder or name")]
    """Name or folder, as `datasets.load_dataset` accepts it."""
    name: str | None = None
    """The data set's configuration."""
    split: str = "train"
    """The split; slices such as `train[:1000]` work."""
    stream: bool = False
    """Read it from the hub as a stream while it is prepared, so that the data set itself takes no disk space."""
    revision: str | None = None
    """A version on the hub; `refs/convert/parquet` for old sets that are made by a script."""
    src_field: str | None = None
    """Field of the source, dots for nesting; default `translation.LANG`, else `LANG`."""
    tgt_field: str | None = None
    """Field of the target, dots for nesting; default `translation.LANG`, else `LANG`."""

    @model_validator(mode="after")
    def _fits(self) -> "HubDataset":
        if self.stream and "[" in self.split:
            raise ValueError(f"split '{self.split}' is a slice, which cannot be read as a stream; leave [...] out")
        return self


SOURCES: dict[str, type[Section]] = {"src": TextFiles, "tsv": TsvFile, "jsonl": JsonlFile, "dataset": HubDataset}
"""Kinds of sources by the key that distinguishes them."""


def source_kind(value: Any) -> str | None:
    """Return the key that distinguishes the kind of a source; None for anything else."""
    for key in SOURCES:
        if (key in value) if isinstance(value, dict) else hasattr(value, key):
            return key
    return None


Source = Annotated[
    Annotated[TextFiles, Tag("src")]
    | Annotated[TsvFile, Tag("tsv")]
    | Annotated[JsonlFile, Tag("jsonl")]
    | Annotated[HubDataset, Tag("dataset")],
    Discriminator(source_kind),
]


class FilterConfig(Section):
    """Filters of the training data; dev and test are never filtered."""

    on_resume = "same"

    max_tokens: Positive = 256
    """Longest side in tokens, eos not counted; a longer pair is left out."""
    max_length_ratio: Annotated[Annotated[float, Field(ge=1.0)] | None, Key(off=None)] = 4.0
    """Longest allowed ratio of the two sides' token counts (checked above 10 tokens); null: no check."""
    max_length_difference: Annotated[Annotated[float, Field(gt=0.0)] | None, Key(off=None)] = 3.0
    """Largest difference of the sides' characters, in standard deviations: the square root of 6.8 times the length
    (Gale and Church 1993) plus 15 percent of it for differences between languages (25 with Chinese, Japanese, Korean or
    unknown languages; a Han letter counts 3.5, kana and Hangul 2); null: no check."""
    drop_identical: Annotated[bool, Key(off=False)] = True
    """Leave out pairs whose sides are the same text, but for case, punctuation and white space."""
    drop_duplicates: Annotated[bool, Key(off=False)] = True
    """Leave out pairs that occurred before."""
    normalize_duplicates: Annotated[bool, Key(off=False)] = False
    """With `drop_duplicates`: pairs that differ only in case, punctuation and white space are the same, too."""
    min_script_share: Annotated[Share, Key(off=0)] = 0.3
    """Minimum fraction of letters in the scripts of the side's language; from 10 letters on, where the language is
    known; 0: no check."""
    min_letter_share: Annotated[Share, Key(off=0)] = 0.2
    """Minimum fraction of letters among a side's characters, white space not counted; 0: no check."""
    max_repeats: Annotated[Positive | None, Key(off=None)] = 8
    """Most repetitions in a row of a character (except digits and white space) or a word; null: no check."""
    max_markup_share: Annotated[Share, Key(off=1)] = 0.5
    """Largest share of a side's characters in URLs, mail addresses, tags and entities of HTML; 1: no check."""
    drop_different_numbers: Annotated[bool, Key(off=False)] = True
    """Leave out pairs in which most numbers have no match on the other side (formats are normalized)."""
    max_different_punctuation: Annotated[Count | None, Key(off=None)] = None
    """Maximum number of question marks, brackets, quotes, colons and symbols that only one side has; null: no check."""
    drop_other_languages: Annotated[bool, Key(off=False)] = True
    """Leave out pairs with a side that has common words of another language and none of its own (30 languages)."""
    min_language_confidence: Annotated[Share, Key(off=0)] = 0.0
    """Minimum probability of each side's language and its close relatives, by the identifier py3langid (extra
    `langid`); languages that it does not know are not checked; 0: no check."""
    max_filtered_share: Annotated[Share, Key(in_fingerprint=False)] = 0.5
    """An error when a larger share of the pairs than this is left out."""


class CheckConfig(Section):
    """Limits above which `mtformer data check` reports an error, besides files of unequal length and
    `filters.max_filtered_share`."""

    on_resume = "same"

    max_invalid_lines: Count = 0
    """Most lines of a set that are not UTF-8, lack a column or are broken JSON; training refuses such files."""
    max_faulty_share: Share = 0.01
    """Largest share of a set's lines, on either side, with characters that break lines or are signs of damage."""
    max_unknown_rate: Share = 0.01
    """Largest share of unknown tokens on either side of train or dev."""
    max_test_overlap: Share = 0.01
    """Largest share of the pairs of dev or a test set that also occur in train."""


class WeightChange(Section):
    """Another weight from a step on."""

    step: Positive
    """From this step on."""
    weight: Annotated[float, Field(ge=0.0)]
    """The new weight; 0: the corpus is not used."""


class CorpusConfig(Section):
    """A corpus that has a weight or a tag of its own."""

    sources: list[Source]
    """Joined in this order."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """Number of times that an epoch has each of its pairs: 2: twice, 0.5: every other one."""
    weight_changes: list[WeightChange] = []
    """Other weights later in the run, by ascending step; an epoch ends where a weight changes."""
    tag: TagPiece | None = None
    """A piece before each of its sources, such as `<bt>` for back-translations (Caswell et al. 2019)."""

    @property
    def weights(self) -> list[tuple[int, float]]:
        """Return (from this step on, weight), by ascending step."""
        return [(0, self.weight), *((change.step, change.weight) for change in self.weight_changes)]

    def weight_at(self, step: int) -> float:
        """Return the weight at a step."""
        return [weight for since, weight in self.weights if since <= step][-1]

    @model_validator(mode="after")
    def _fits(self) -> "CorpusConfig":
        if not self.sources:
            raise ValueError("sources is empty; name at least one source")
        steps = [change.step for change in self.weight_changes]
        if steps != sorted(set(steps)):
            raise ValueError(f"weight_changes are not by ascending step: {', '.join(map(str, steps))}")
        return self


class NoiseConfig(Section):
    """Noise on the sources of the training data, new in each epoch, for robustness; all off by default."""

    word_dropout: Fraction = 0.0
    """Share of the words that are left out."""
    typos: Fraction = 0.0
    """Share of the words that get a typing mistake: two letters swapped, one left out, doubled or replaced."""
    case: Fraction = 0.0
    """Share of the sentences written in capitals or in small letters throughout."""


class DataConfig(Section):
    """The corpora."""

    src_lang: Annotated[Language, Key(on_resume="refuse")]
    """ISO 639 code of the source language (en, pt-BR, nds, zh_Hant, ...)."""
    tgt_lang: Annotated[Language, Key(on_resume="refuse")]
    """ISO 639 code of the target language."""
    train: Annotated[list[Source], Key(on_resume="same")] = []
    """Training sources, joined in this order."""
    corpora: dict[TestName, CorpusConfig] = {}
    """More training data, by name, each with its own weight."""
    temperature: Annotated[float, Field(ge=1.0)] = 1.0
    """T: corpora and languages come in shares of size^(1/T); above 1 small ones come more often."""
    both_directions: bool = False
    """Use all data from target to source too, dev and test sets included (joint vocabulary, `language_tags`)."""
    tgt_langs: list[Language] = []
    """More target languages of the model than its data show (a bundle names no data)."""
    language_tags: Annotated[Literal["none", "source", "target"], Key(on_resume="refuse")] = "none"
    """Position of the target-language tag (`<2de>`) of a multilingual model: before the source, or instead of bos."""
    dev: Annotated[list[Source], Key(on_resume="same")] = []
    """Validation sources."""
    test: Annotated[dict[TestName, Source], Key(on_resume="same", side_output=True)] = {}
    """Test sets by name."""
    filters: FilterConfig = FilterConfig()
    """Filters of the training data."""
    check: CheckConfig = CheckConfig()
    """Limits of `mtformer data check`."""
    cache_dir: Annotated[str | None, Key(on_resume="same", path="file", has_effect=False)] = None
    """Folder of tokenized corpora and of tokenizers; default `MTFORMER_CACHE`, or `mtformer` in `XDG_CACHE_HOME` or
    `~/.cache`."""
    noise: NoiseConfig = NoiseConfig()
    """Noise in training."""
    num_workers: Annotated[Positive | None, Key(on_resume="same", has_effect=False)] = None
    """Processes that tokenize; default: one per core."""

    @property
    def sources(self) -> list[Source]:
        """Return all training sources."""
        return [*self.train, *(source for corpus in self.corpora.values() for source in corpus.sources)]

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Return (source language, target language) of all data; that of the config first."""
        found = {(self.src_lang, self.tgt_lang): None}
        for source in (*self.sources, *self.dev, *self.test.values()):
            found[source.src_lang or self.src_lang, source.tgt_lang or self.tgt_lang] = None
        if self.both_directions:
            found.update(dict.fromkeys((tgt, src) for src, tgt in list(found)))
        return list(found)

    @property
    def target_languages(self) -> list[str]:
        """Return the target languages of the model, that of the config first."""
        return list(dict.fromkeys([*(tgt for _, tgt in self.directions), *self.tgt_langs]))

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        targets = self.target_languages
        changes = {0, *(change.step for corpus in self.corpora.values() for change in corpus.weight_changes)}
        for step in sorted(changes):
            if self.corpora and not self.train and not any(one.weight_at(step) for one in self.corpora.values()):
                raise ValueError(f"from step {step} on all corpora have the weight 0; leave one above it")
        if len(targets) > 1 and self.language_tags == "none":
            raise ValueError(
                f"there are several target languages ({', '.join(targets)}); set language_tags to source or target"
            )
        return self
