"""Schema of the `data` section: sources, corpora, filters, limits and noise."""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mtformer.config.languages import Language, LanguagePair
from mtformer.config.section import (
    ARGOS,
    CTRANSLATE2,
    HUGGINGFACE,
    Count,
    Fraction,
    Key,
    Positive,
    Section,
    Share,
    TagPiece,
    TestName,
)


class _Source(Section):
    """Keys shared by all types of sources."""

    src_lang: Language | None = None
    """Source language code, if different from `data.src_lang`."""
    tgt_lang: Language | None = None
    """Target language code, if different from `data.tgt_lang`."""


class TextFiles(_Source):
    """Two parallel text files with one sentence per line, optionally compressed (`.gz`, `.xz`, `.zst`, `.bz2`)."""

    src: Annotated[str, Key(path="file")]
    """File with the source sentences."""
    tgt: Annotated[str, Key(path="file")]
    """File with the target sentences; must have the same number of lines."""


class TsvFile(_Source):
    """A tab-separated file."""

    tsv: Annotated[str, Key(path="file")]
    """Path of the file, optionally compressed (`.gz`, `.xz`, `.zst`, `.bz2`)."""
    src_column: Positive = 1
    """Column of the source sentence; the first column is 1."""
    tgt_column: Positive = 2
    """Column of the target sentence; the first column is 1."""

    @model_validator(mode="after")
    def _fits(self) -> "TsvFile":
        if self.src_column == self.tgt_column:
            raise ValueError(f"src_column and tgt_column are both {self.src_column}; give different columns")
        return self


class JsonlFile(_Source):
    """A file with one JSON object per line."""

    jsonl: Annotated[str, Key(path="file")]
    """Path of the file, optionally compressed (`.gz`, `.xz`, `.zst`, `.bz2`)."""
    src_field: str | None = None
    """Field with the source text (`a.b` for nested fields); default: `translation.LANG`, or `LANG` (language code)."""
    tgt_field: str | None = None
    """Field with the target text (`a.b` for nested fields); default: `translation.LANG`, or `LANG` (language code)."""


class HubDataset(_Source):
    """A Hugging Face dataset on the Hub or in a local folder."""

    dataset: Annotated[str, Key(path="folder or name")]
    """Name or folder, as accepted by `datasets.load_dataset`."""
    name: str | None = None
    """Name of the dataset configuration."""
    split: str = "train"
    """Name of the split; slices such as `train[:1000]` are allowed, except in streams."""
    stream: bool = False
    """Stream the dataset from the Hub during preparation, without storing it on disk."""
    revision: str | None = None
    """Git revision on the Hub; `refs/convert/parquet` for older datasets with a loading script."""
    src_field: str | None = None
    """Field with the source text (`a.b` for nested fields); default: `translation.LANG`, or `LANG` (language code)."""
    tgt_field: str | None = None
    """Field with the target text (`a.b` for nested fields); default: `translation.LANG`, or `LANG` (language code)."""


SOURCES: dict[str, type[Section]] = {"src": TextFiles, "tsv": TsvFile, "jsonl": JsonlFile, "dataset": HubDataset}
"""Types of sources, by the key that identifies them."""


def source_kind(value: Any) -> str | None:
    """Return the key that identifies the type of a source; None if the value is not a source."""
    for key in SOURCES:
        has_key = key in value if isinstance(value, dict) else hasattr(value, key)
        if has_key:
            return key
    return None


Source = Annotated[
    Annotated[TextFiles, Tag("src")]
    | Annotated[TsvFile, Tag("tsv")]
    | Annotated[JsonlFile, Tag("jsonl")]
    | Annotated[HubDataset, Tag("dataset")],
    Discriminator(source_kind),
]
"""A source of sentence pairs."""


def _dev_kind(value: Any) -> str:
    """Return the tag of the type of `data.dev`."""
    # A single source is reported as a missing list, not as an invalid name.
    is_source = source_kind(value) is not None
    return "dict" if isinstance(value, dict) and not is_source else "list"


DevSources = Annotated[
    Annotated[list[Source], Tag("list")] | Annotated[dict[TestName, Source], Tag("dict")],
    Discriminator(_dev_kind),
]
"""Sources of one dev set, or of several by name."""


class FilterConfig(Section):
    """Filters of the training data; dev and test are never filtered."""

    on_resume = "same"

    max_tokens: Positive = 256
    """Maximum number of tokens per side, excluding eos."""
    max_length_ratio: Annotated[Annotated[float, Field(ge=1.0)] | None, Key(off=None)] = 4.0
    """Maximum ratio of the token counts, checked if the longer side has more than 10 tokens; null: no check."""
    max_length_difference: Annotated[Annotated[float, Field(gt=0.0)] | None, Key(off=None)] = 3.0
    """Maximum difference in length (in characters), as a number of standard deviations. The variance is 6.8 times the
    length (Gale and Church 1993), plus the square of 15 percent of the length for differences between languages (25
    percent for Chinese, Japanese, Korean and unknown languages). A Han character counts as 3.5 characters, a kana or
    Hangul character as 2; null: no check."""
    drop_identical: Annotated[bool, Key(off=False)] = True
    """Remove pairs whose source and target are equal, ignoring case, punctuation and whitespace."""
    drop_duplicates: Annotated[bool, Key(off=False)] = True
    """Remove repeated pairs, keeping the first."""
    normalize_duplicates: Annotated[bool, Key(off=False)] = False
    """With `drop_duplicates`: ignore case, punctuation and whitespace when comparing pairs."""
    min_script_share: Annotated[Share, Key(off=0)] = 0.3
    """Minimum share of letters that belong to a script of the expected language, checked if a side has at least 10
    letters and its language is known; 0: no check."""
    min_letter_share: Annotated[Share, Key(off=0)] = 0.2
    """Minimum share of letters among the non-whitespace characters of each side; 0: no check."""
    max_repeats: Annotated[Positive | None, Key(off=None)] = 8
    """Maximum number of consecutive occurrences of a word or character except digits and whitespace; null: no check."""
    max_markup_share: Annotated[Share, Key(off=1)] = 0.5
    """Maximum share of characters in URLs, email addresses, and HTML tags and entities; 1: no check."""
    drop_different_numbers: Annotated[bool, Key(off=False)] = True
    """Remove pairs in which a number is replaced, or most numbers have no match (formats are normalized)."""
    max_different_punctuation: Annotated[Count | None, Key(off=None)] = None
    """Maximum number of question marks, brackets, quotes, colons and symbols without a match; null: no check."""
    drop_other_languages: Annotated[bool, Key(off=False)] = True
    """Remove pairs if a side has common words of another language but none of the expected one (for 29 languages)."""
    min_language_confidence: Annotated[Share, Key(off=0)] = 0.0
    """Minimum probability of the expected language and its close relatives according to py3langid (extra `langid`).
    Languages that py3langid does not support are not checked; 0: no check."""
    max_filtered_share: Annotated[Share, Key(in_fingerprint=False)] = 0.5
    """Maximum share of pairs that the filters may remove; a larger share is an error."""


class CheckConfig(Section):
    """Limits for `mtformer data check`, which reports an error if one is exceeded.

    Files of unequal length, and filters that remove more than `filters.max_filtered_share`, are also errors.
    """

    on_resume = "same"

    max_invalid_lines: Count = 0
    """Maximum number of lines per set that are not UTF-8, lack a column or are invalid JSON; `train` allows none."""
    max_faulty_share: Share = 0.01
    """Maximum share of lines per side with characters that break lines or indicate damage."""
    max_unknown_rate: Share = 0.01
    """Maximum share of unknown tokens per side of train or dev."""
    max_test_overlap: Share = 0.01
    """Maximum share of the pairs in dev or a test set that also occur in train."""


class CorpusConfig(Section):
    """A corpus with its own weight and tag."""

    removed = {"weight_changes": []}

    sources: Annotated[list[Source], Field(min_length=1), Key(on_resume="same")]
    """Sources, concatenated in this order."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """Number of times that each pair occurs in an epoch; 2: twice, 0.5: every other pair."""
    tag: TagPiece | None = None
    """Tag to insert before each source sentence, such as `<bt>` for back-translations (Caswell et al. 2019)."""


class NoiseConfig(Section):
    """Random noise in the training data, different in each epoch, for more robust models; off by default."""

    word_dropout: Fraction = 0.0
    """Share of source words to remove."""
    typos: Fraction = 0.0
    """Share of source words in which to insert a typo: two letters swapped, one letter deleted, doubled or replaced, or
    the space after the word removed."""
    case: Fraction = 0.0
    """Share of pairs to convert to uppercase or title case on both sides, or to lowercase on the source side (a
    third each)."""
    final_stop: Fraction = 0.0
    """Share of pairs from which to remove the final full stop, on both sides."""
    copies: Fraction = 0.0
    """Share of pairs to which to add the same emoji, URL, e-mail address, number or date, at the start or end of both
    sides. Text with characters that the vocabulary lacks is not added; see `tokenizer.byte_fallback`."""


TAGS_IN_EXPORTS = (CTRANSLATE2.only("none", "source"), HUGGINGFACE.only("none", "source"), ARGOS.only("none"))
"""Language tags that exports support: their decoders start with bos, and Argos Translate adds no tags to the source."""


class DataConfig(Section):
    """Corpora, languages, filters and noise."""

    removed = {"tgt_langs": []}

    src_lang: Annotated[Language, Key(on_resume="refuse")]
    """ISO 639 code of the source language (en, pt-BR, nds, zh_Hant, ...)."""
    tgt_lang: Annotated[Language, Key(on_resume="refuse")]
    """ISO 639 code of the target language."""
    train: Annotated[list[Source], Key(on_resume="same")] = []
    """Training sources, concatenated in this order."""
    corpora: dict[TestName, CorpusConfig] = {}
    """Additional training corpora by name, each with its own weight."""
    temperature: Annotated[float, Field(ge=1.0)] = 1.0
    """Temperature T: corpora are sampled in proportion to size^(1/T); above 1, small corpora are sampled more often."""
    both_directions: bool = False
    """Also use all data, with dev and test sets, from target to source; needs `tokenizer.joint` and `language_tags`."""
    language_pairs: list[LanguagePair] = []
    """Directions of the model in addition to those of the data, as `en de` (needed in bundles, which list no data)."""
    language_tags: Annotated[Literal["none", "source", "target"], Key(on_resume="refuse", exports=TAGS_IN_EXPORTS)] = (
        "none"
    )
    """Target language tag (`<2de>`) in multilingual models. source: before each source; target: instead of bos."""
    dev: Annotated[DevSources, Key(on_resume="same")] = []
    """Validation sources: a list for one dev set, or a mapping from names to sources for several."""
    test: Annotated[dict[TestName, Source], Key(on_resume="same", side_output=True)] = {}
    """Test sets by name."""
    filters: FilterConfig = FilterConfig()
    """Filters of the training data."""
    check: CheckConfig = CheckConfig()
    """Limits for `mtformer data check`."""
    cache_dir: Annotated[str | None, Key(on_resume="same", path="file", has_effect=False)] = None
    """Folder for tokenized corpora and trained tokenizers; default: `MTFORMER_CACHE`, or `mtformer` in `XDG_CACHE_HOME`
    or `~/.cache`."""
    noise: NoiseConfig = NoiseConfig()
    """Noise in the training data."""
    num_workers: Annotated[Positive | None, Key(on_resume="same", has_effect=False)] = None
    """Number of tokenizer processes; default: one per core. In training on a GPU, up to this number of processes
    (default: 4) add noise."""

    @property
    def sources(self) -> list[Source]:
        """Return all training sources."""
        sources = list(self.train)
        for corpus in self.corpora.values():
            sources += corpus.sources
        return sources

    @property
    def dev_sets(self) -> dict[str, list[Source]]:
        """Return the sources of each dev set by name: `dev` for a list, `dev.NAME` for the items of a mapping."""
        if isinstance(self.dev, dict):
            return {f"dev.{name}": [source] for name, source in self.dev.items()}
        return {"dev": self.dev} if self.dev else {}

    @property
    def dev_sources(self) -> list[Source]:
        """Return the sources of all dev sets."""
        return list(chain.from_iterable(self.dev_sets.values()))

    @property
    def dev_names(self) -> list[str]:
        """Return the names in dev metrics (`bleu NAME`): dev sets and, if a set has several, directions (`en-de`)."""
        names: list[str] = []
        for set_name, sources in self.dev_sets.items():
            names.append(set_name)
            directions = self._directions(sources)
            if len(directions) > 1:
                names += [f"{set_name}.{src}-{tgt}" for src, tgt in directions]
        return [name.removeprefix("dev.") for name in names if name != "dev"]

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Return all pairs (source language, target language), starting with the languages of this section."""
        sources = [*self.sources, *self.dev_sources, *self.test.values()]
        directions = self._directions([self, *sources])
        for pair in self.language_pairs:
            src, tgt = pair.split()
            directions.append((src, tgt))
        return list(dict.fromkeys(directions))

    def languages(self, source: "Source | DataConfig") -> tuple[str, str]:
        """Return the codes of the source and target language of a source."""
        return source.src_lang or self.src_lang, source.tgt_lang or self.tgt_lang

    def _directions(self, sources: "Iterable[Source | DataConfig]") -> list[tuple[str, str]]:
        """Return the distinct language pairs of sources, in both directions if `both_directions` is set."""
        directions = [self.languages(source) for source in sources]
        if self.both_directions:
            directions += [(tgt, src) for src, tgt in directions]
        return list(dict.fromkeys(directions))

    @property
    def target_languages(self) -> list[str]:
        """Return the target languages of the model, starting with `tgt_lang`."""
        targets = [tgt for _, tgt in self.directions]
        return list(dict.fromkeys(targets))

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        targets = self.target_languages
        if len(targets) > 1 and self.language_tags == "none":
            raise ValueError(
                f"there are several target languages ({', '.join(targets)}); set language_tags to source or target"
            )
        if self.train and "train" in self.corpora:
            raise ValueError("corpora.train: this is the name of data.train; choose another name")

        if self.both_directions:
            corpora = [corpus.sources for corpus in self.corpora.values()]
            for sources in (self.train, *corpora, *self.dev_sets.values()):
                self._require_one_order(sources)
        return self

    def _require_one_order(self, sources: Iterable[Source]) -> None:
        """Raise ValueError if one of the sources has the languages of another one in the opposite order."""
        directions = set(map(self.languages, sources))
        opposites = {(tgt, src) for src, tgt in directions}
        if not directions.isdisjoint(opposites):
            problem = "the sources of a corpus have the same languages in different order; swap src and tgt of some"
            raise ValueError(f"both_directions: {problem}")
