"""The experiment, typed: every key that a config may hold, its range, its default, and what it means.

Nothing here is derived and nothing is stored twice. Each room of the package receives its own section only.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
# YAML has lists and no tuples.
Pair = Annotated[
    tuple[Fraction, Fraction], BeforeValidator(lambda items: tuple(items) if type(items) is list else items)
]


def _check_tag(tag: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", tag) is None:
        raise ValueError(f"a tag is written in angle brackets and without spaces, such as <bt>, not '{tag}'")
    return tag


TagPiece = Annotated[str, AfterValidator(_check_tag)]
"""A piece that text does not hold by chance."""
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""A set's name is a folder of the run and a part of dotted keys: letters, digits, `_` and `-`."""


class Section(BaseModel):
    """A frozen group of keys; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class _Source(Section):
    """What all kinds of sources have."""

    src_lang: str | None = None
    """Code of the source language, where it is not `data.src_lang`."""
    tgt_lang: str | None = None
    """Code of the target language, where it is not `data.tgt_lang`."""


class TextFiles(_Source):
    """Two parallel text files, one sentence a line; `.gz`, `.xz` and `.zst` are read as they are."""

    src: str
    """File of source sentences."""
    tgt: str
    """File of target sentences, as many lines as `src`."""


class TsvFile(_Source):
    """One tab-separated file."""

    tsv: str
    """The file; `.gz`, `.xz` and `.zst` are read as they are."""
    src_column: Positive = 1
    """Column of the source sentence, counted from 1 as `cut -f` does."""
    tgt_column: Positive = 2
    """Column of the target sentence, counted from 1."""


class JsonlFile(_Source):
    """One JSON object a line."""

    jsonl: str
    """The file; `.gz`, `.xz` and `.zst` are read as they are."""
    src_field: str | None = None
    """Field of the source, dots for nesting; default `translation.LANG`, else `LANG`."""
    tgt_field: str | None = None
    """Field of the target, dots for nesting; default `translation.LANG`, else `LANG`."""


class HubDataset(_Source):
    """A Hugging Face data set: a name on the hub or a local folder."""

    dataset: str
    """What `datasets.load_dataset` takes as `path`."""
    name: str | None = None
    """The data set's configuration."""
    split: str = "train"
    """The split; slices such as `train[:1000]` work."""
    revision: str | None = None
    """A version on the hub; `refs/convert/parquet` for old sets that are made by a script."""
    src_field: str | None = None
    """Field of the source, dots for nesting; default `translation.LANG`, else `LANG`."""
    tgt_field: str | None = None
    """Field of the target, dots for nesting; default `translation.LANG`, else `LANG`."""


SOURCE_KEYS = ("src", "tsv", "jsonl", "dataset")


def source_kind(value: Any) -> str | None:
    """The one key that tells which kind of source a mapping is."""
    for key in SOURCE_KEYS:
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
    """What is left out of the training data; dev and test are never filtered."""

    max_tokens: Positive = 256
    """Longest side in tokens, eos not counted; a longer pair is left out."""
    max_length_ratio: Annotated[float, Field(ge=1.0)] | None = 4.0
    """Longest allowed ratio of the two sides' token counts (checked above 10 tokens); null: no check."""
    max_length_difference: Annotated[float, Field(gt=0.0)] | None = 3.0
    """Largest difference of the sides' characters, in standard deviations: the square root of 6.8 times the length
    (Gale and Church 1993) and 15 percent of it, for languages differ (25 where Chinese, Japanese, Korean or unknown
    languages take part; a Han letter counts 3.5, kana and Hangul 2); null: no check."""
    drop_identical: bool = True
    """Leave out pairs whose sides are the same text, but for case, punctuation and white space."""
    drop_duplicates: bool = True
    """Leave out pairs that have stood before."""
    normalise_duplicates: bool = False
    """With `drop_duplicates`: pairs that differ only in case, punctuation and white space are the same, too."""
    min_script_share: Share = 0.3
    """Least share of a side's letters, weighted so, in the scripts of its language; the rest is room for names. From 10
    letters on, where the language is known; 0: no check."""
    min_letter_share: Share = 0.2
    """Least share of letters among a side's characters, white space not counted; 0: no check."""
    max_repeats: Positive | None = 8
    """A character (digits and white space excepted) or a word may come so many times in a row; null: no check."""
    max_markup_share: Share = 0.5
    """Largest share of a side's characters in URLs, mail addresses, tags and entities of HTML; 1: no check."""
    drop_different_numbers: bool = True
    """Leave out pairs where more numbers lack a counterpart on the other side than have one, written as they may be."""
    max_different_punctuation: Count | None = None
    """Most question marks, brackets, quotes, colons and symbols that only one side has; null: no check."""
    drop_other_languages: bool = True
    """Leave out pairs with a side that has common words of another language and none of its own (30 languages)."""
    min_language_confidence: Share = 0.0
    """Leave out pairs with a side that the language identifier `lingua` (extra `langid`) gives its language less
    probability than this; 0: not asked."""
    max_filtered_share: Share = 0.5
    """An error when a larger share of the pairs than this is left out."""


class CheckConfig(Section):
    """What `mtformer data check` calls a mistake, besides files of unequal length and `filters.max_filtered_share`."""

    max_invalid_lines: Count = 0
    """Most lines of a set that are not UTF-8 or lack a column; training refuses such files."""
    max_faulty_share: Share = 0.01
    """Largest share of a set's lines, on either side, with characters that break lines or tell of damage."""
    max_unknown_rate: Share = 0.01
    """Largest share of unknown tokens on either side of train or dev."""
    max_test_overlap: Share = 0.01
    """Largest share of the pairs of dev or a test set that stand in train too."""


class WeightChange(Section):
    """Another weight from a step on."""

    step: Positive
    """From this step on."""
    weight: Annotated[float, Field(ge=0.0)]
    """As `weight`; 0: none of it."""


class CorpusConfig(Section):
    """A corpus that has a weight or a tag of its own."""

    sources: list[Source]
    """Joined in this order."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """How often an epoch holds each of its pairs: 2: twice, 0.5: every other one. With `data.streaming`: its part of
    what is read, to the parts of the others."""
    weight_changes: list[WeightChange] = []
    """Other weights later in the run, by ascending step; an epoch ends where a weight changes."""
    tag: TagPiece | None = None
    """A piece before each of its sources, such as `<bt>` for back-translations (Caswell et al. 2019)."""

    @property
    def weights(self) -> list[tuple[int, float]]:
        """(from this step on, weight), by ascending step."""
        return [(0, self.weight), *((change.step, change.weight) for change in self.weight_changes)]

    def weight_at(self, step: int) -> float:
        """The weight that holds at a step."""
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

    src_lang: str
    """Code of the source language (en, ja, ...)."""
    tgt_lang: str
    """Code of the target language."""
    train: list[Source] = []
    """Training sources, joined in this order."""
    corpora: dict[TestName, CorpusConfig] = {}
    """More training data, by name, each with its own weight."""
    temperature: Annotated[float, Field(ge=1.0)] = 1.0
    """T: corpora and languages come in shares of size^(1/T); above 1 small ones come more often."""
    both_directions: bool = False
    """Use all data from target to source too, dev and test sets included (joint vocabulary, `language_tags`)."""
    tgt_langs: list[str] = []
    """More target languages of the model than its data show (a bundle names no data)."""
    language_tags: Literal["none", "source", "target"] = "none"
    """How a model of several target languages is told which: `<2de>` before the source, or in the place of bos."""
    dev: list[Source] = []
    """Sources that validation runs on."""
    test: dict[TestName, Source] = {}
    """Test sets by name."""
    filters: FilterConfig = FilterConfig()
    """What is left out of the training data."""
    check: CheckConfig = CheckConfig()
    """Limits of `mtformer data check`."""
    cache_dir: str | None = None
    """Where tokenised corpora lie; default `~/.cache/mtformer`, or `MTFORMER_CACHE`."""
    noise: NoiseConfig = NoiseConfig()
    """Noise in training."""
    streaming: bool = False
    """Read and tokenise training data while training, instead of preparing it: for what is larger than the disk."""
    stream_buffer: Positive = 100_000
    """With `streaming`: so many pairs are read and shuffled together; an epoch is one such buffer."""
    num_workers: Positive | None = None
    """Processes that tokenise; default: the cores there are."""

    @property
    def sources(self) -> list[Source]:
        """All training sources."""
        return [*self.train, *(source for corpus in self.corpora.values() for source in corpus.sources)]

    @property
    def directions(self) -> list[tuple[str, str]]:
        """(source language, target language) of all data; that of the config first."""
        found = {(self.src_lang, self.tgt_lang): None}
        for source in (*self.sources, *self.dev, *self.test.values()):
            found[source.src_lang or self.src_lang, source.tgt_lang or self.tgt_lang] = None
        if self.both_directions:
            found.update(dict.fromkeys((tgt, src) for src, tgt in list(found)))
        return list(found)

    @property
    def target_languages(self) -> list[str]:
        """Of the model, that of the config first."""
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

    @model_validator(mode="after")
    def _can_be_streamed(self) -> "DataConfig":
        if not self.streaming:
            return self
        if self.temperature > 1:
            raise ValueError(
                "temperature needs the sizes of the corpora, which are not known with streaming; give the corpora "
                "weights instead"
            )
        for source in self.sources:
            if isinstance(source, HubDataset) and "[" in source.split:
                raise ValueError(f"split '{source.split}' is a slice, which streaming cannot read; leave [...] out")
        return self


class TokenizerConfig(Section):
    """SentencePiece. Special ids are always pad 0, unk 1, bos 2, eos 3."""

    src_model: str | None = None
    """An existing model to use instead of training one (when joint: for both sides)."""
    tgt_model: str | None = None
    """An existing target model, for separate vocabularies."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """How SentencePiece makes pieces."""
    vocab_size: Annotated[int, Field(ge=16)] = 8000
    """Pieces, special ones included (for each side when not joint)."""
    joint: bool = True
    """One model for both languages."""
    character_coverage: Annotated[float, Field(ge=0.9, le=1.0)] = 1.0
    """Share of characters that get a piece; 0.9995 for Japanese or Chinese."""
    byte_fallback: bool = False
    """Spell unknown characters as bytes, so that nothing is ever unknown (costs 256 pieces)."""
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's normalisation rule; the `_cf` rules fold case."""
    user_symbols: list[str] = []
    """Pieces that are always kept whole (language tags, markers)."""
    train_sentences: Positive = 5_000_000
    """The tokenizer is trained on at most so many sentences, sampled evenly."""
    sampling_alpha: Fraction = 0.0
    """Subword sampling in training. 0: off. unigram: smoothing of the sampling (0.1 to 0.5);
    bpe: the share of merges dropped (BPE-dropout, 0.1)."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.joint and self.tgt_model is not None:
            raise ValueError("tgt_model is for separate vocabularies (joint: false); a joint model is src_model")
        return self


class ModelConfig(Section):
    """The Transformer of "Attention Is All You Need"; the defaults are its base model, pre-norm."""

    d_model: Positive = 512
    """Width of embeddings and layers."""
    num_heads: Positive = 8
    """Attention heads; must divide `d_model`."""
    num_kv_heads: Positive | None = None
    """Grouped-query attention: heads that keys and values have; default: as many as `num_heads`."""
    d_ff: Positive = 2048
    """Width inside the feed-forward layers."""
    num_encoder_layers: Positive = 6
    """Layers on the source side."""
    num_decoder_layers: Positive = 6
    """Layers on the target side."""
    dropout: Fraction = 0.1
    """On the embeddings and on each sub-layer's output."""
    attention_dropout: Fraction = 0.0
    """On attention weights; fused kernels want 0."""
    activation_dropout: Fraction = 0.0
    """Inside the feed-forward layer, after its activation."""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: before each sub-layer, and once at the end; post: after it, as in the paper."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of normalisation."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Of the feed-forward layers; swiglu and geglu have a third matrix, the gate."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """How the model knows the order of tokens."""
    max_positions: Positive = 1024
    """Longest sequence in tokens, eos included."""
    tie_embeddings: Literal["all", "output", "none"] = "all"
    """all: source, target and output share one matrix (joint vocabulary); output: target and output; none."""
    output_bias: bool = False
    """Add a learned number to each piece's logit (Marian's models have it)."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ModelConfig":
        if self.d_model % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide d_model {self.d_model}")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        if self.positions == "rotary" and (self.d_model // self.num_heads) % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.d_model // self.num_heads}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        return self


class TrainingConfig(Section):
    """The optimisation and what surrounds it."""

    seed: Count = 1
    """Of the initial weights, dropout, subword sampling and the order of the data."""
    init_from: str | None = None
    """A run or bundle whose weights (averaged if there, else best, else last) and tokenizer this run begins with,
    instead of new ones. Its model must have the same shape: let the config extend that run's config.yaml."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA when there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where the hardware multiplies it, else fp32. fp16 (CUDA only) uses a gradient scaler."""
    deterministic: bool = False
    """On CUDA take only kernels that give the same bits every time, some of them slower; on a CPU all do."""
    sharded: bool = False
    """Spread weights, gradients and moments over the processes of `torchrun` (FSDP2), for a model too large for one
    device; else each process has a copy (DDP)."""
    compile: bool = False
    """`torch.compile` the model (needs a C++ compiler on CPU)."""
    batch_tokens: Positive = 4096
    """A micro-batch of n pairs has n x (longest side, in tokens) up to this."""
    accumulation_steps: Positive = 1
    """Micro-batches to one optimizer step, of each process."""
    max_steps: Positive = 100_000
    """Optimizer steps in all."""
    max_epochs: Positive | None = None
    """Stop after so many passes over the data, if that comes first."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """adamw: the weight decay is not part of the gradient."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 7e-4
    """The peak; with `noam` the factor in the paper's formula (the paper: 1.0)."""
    betas: Pair = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-9
    """Added to the denominator of Adam."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """On matrices, not on biases, norms or embeddings."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """How the learning rate goes on after the warm-up."""
    warmup_steps: Count = 4000
    """Steps of linear warm-up, with each schedule."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest gradient norm; 0: no clipping."""
    label_smoothing: Fraction = 0.1
    """Share of the target probability that is spread over all other pieces."""
    log_every: Positive = 50
    """Steps from one log line to the next."""
    validate_every: Positive = 1000
    """Steps from one validation, and checkpoint, to the next."""
    best_metric: str = "bleu"
    """The dev metric that chooses the best checkpoint and stops early: loss, perplexity, bleu, chrf."""
    patience: Positive | None = None
    """Stop after so many validations without a better `best_metric`; null: never."""
    keep_last: Positive = 5
    """The newest checkpoints kept."""
    keep_best: Positive = 1
    """The best checkpoints kept."""
    average_last: Count = 0
    """At the end, average the weights of so many of the newest checkpoints; 0: none."""
    sample_sentences: Count = 3
    """Dev sentences whose translations are logged at each validation."""
    tensorboard: bool = False
    """Write TensorBoard events too (extra `tensorboard`)."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if self.best_metric not in DEV_METRICS:
            raise ValueError(f"best_metric '{self.best_metric}' is not one of {', '.join(DEV_METRICS)}")
        if self.average_last > self.keep_last:
            raise ValueError(
                f"average_last {self.average_last} needs keep_last of at least as many, not {self.keep_last}"
            )
        return self


DEV_METRICS = ("loss", "perplexity", "bleu", "chrf")


Stopping = Literal["ended", "estimate", "certain"]


class DecodingConfig(Section):
    """Search, for `translate`, `eval` and validation."""

    beam_size: Positive = 5
    """1: greedy."""
    n_best: Positive = 1
    """Translations given for each source: the best of the beam, or so many samples."""
    length_penalty: Annotated[float, Field(ge=0.0)] = 1.0
    """alpha in score = log-probability / length^alpha."""
    coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """beta: what has ended is ranked by score + beta x the sum, over source tokens, of log(min(1, its attention))."""
    early_stopping: Stopping = "ended"
    """Done when `beam_size` hypotheses have ended; estimate: and none alive is better; certain: nor could be."""
    max_length_ratio: Annotated[float, Field(gt=0.0)] = 2.0
    """A translation has at most this many times the source's tokens, plus 10."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """A translation has at least this many times the source's tokens."""
    max_length: Positive | None = None
    """A translation has at most so many tokens, whatever its source."""
    min_length: Count = 0
    """A translation has at least so many tokens, whatever its source."""
    no_repeat_ngram_size: Count = 0
    """No sequence of so many tokens comes twice in a translation; 0: it may."""
    repetition_penalty: Annotated[float, Field(ge=1.0)] = 1.0
    """Log-probabilities of tokens that were there already are multiplied by this while searching; 1: no penalty."""
    beam_groups: Positive = 1
    """Diverse beam search: groups that the beam is cut into, each kept from the tokens that those before it took."""
    diversity_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """With `beam_groups`: what a token loses for each beam of an earlier group that takes it at this step."""
    sampling: bool = False
    """Draw translations at random instead of searching for the best."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """With `sampling`: below 1 probable tokens gain, above 1 they lose."""
    top_k: Count = 0
    """With `sampling`: draw from the k most probable tokens only; 0: from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """With `sampling`: draw from the fewest tokens that have this probability together (nucleus)."""
    seed: Count = 1
    """Of the samples: one seed, one result, whatever the batches."""
    mbr_samples: Count = 0
    """Draw so many samples and give the one most like the others (minimum Bayes risk); 0: no."""
    mbr_metric: Literal["chrf", "bleu"] = "chrf"
    """With `mbr_samples`: what "like" is measured by."""
    replace_unknowns: bool = False
    """Put the source word with the most attention where the model wrote an unknown piece."""
    batch_tokens: Positive = 8192
    """A batch of n sentences has n x beam_size x (longest source, in tokens) up to this."""
    validation_beam_size: Positive = 1
    """Beam size when dev is decoded in training."""

    def for_validation(self) -> "DecodingConfig":
        """The section as validation in training uses it: `validation_beam_size`, one translation, nothing drawn."""
        plain = {"n_best", "early_stopping", "beam_groups", "diversity_penalty", "sampling", "temperature", "top_k"}
        kept = self.model_dump(exclude=plain | {"top_p", "seed", "mbr_samples", "mbr_metric", "coverage_penalty"})
        return DecodingConfig.model_validate({**kept, "beam_size": self.validation_beam_size})

    @property
    def draws(self) -> bool:
        """Is it sampling, for MBR too?"""
        return self.sampling or self.mbr_samples > 0

    @property
    def num_rows(self) -> int:
        """Hypotheses of one sentence that are computed together."""
        if self.draws:
            return self.mbr_samples or self.n_best
        return self.beam_size

    @model_validator(mode="after")
    def _fits(self) -> "DecodingConfig":
        if self.min_length_ratio > self.max_length_ratio:
            raise ValueError(
                f"min_length_ratio {self.min_length_ratio} is above max_length_ratio {self.max_length_ratio}"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        if self.n_best > self.num_rows:
            what = "mbr_samples" if self.mbr_samples else "beam_size"
            raise ValueError(f"n_best {self.n_best} is above {what} {self.num_rows}; give {what} at least that")
        if self.beam_size % self.beam_groups:
            raise ValueError(f"beam_groups {self.beam_groups} does not divide beam_size {self.beam_size}")
        if (self.beam_groups > 1) != (self.diversity_penalty > 0):
            raise ValueError("beam_groups above 1 and a diversity_penalty above 0 go together; give both or neither")
        if self.beam_groups > 1 and self.draws:
            raise ValueError("beam_groups is for beam search; leave it out when sampling")
        for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("seed", 1)):
            if getattr(self, name) != neutral and not self.draws:
                raise ValueError(f"{name} is for sampling; set sampling: true too")
        if self.mbr_metric != "chrf" and not self.mbr_samples:
            raise ValueError(f"mbr_metric {self.mbr_metric} goes with mbr_samples; set that too")
        return self


class EvaluationConfig(Section):
    """sacreBLEU's settings, on detokenised text."""

    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"] = "13a"
    """sacreBLEU's tokenizer for BLEU, by target language: zh, ja-mecab, ko-mecab; else 13a."""
    lowercase: bool = False
    """Score without regard to case."""


class Config(Section):
    """One experiment."""

    data: DataConfig
    """The corpora."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The vocabulary."""
    model: ModelConfig = ModelConfig()
    """The Transformer."""
    training: TrainingConfig = TrainingConfig()
    """The optimisation and what surrounds it."""
    decoding: DecodingConfig = DecodingConfig()
    """Search."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Scoring."""

    @model_validator(mode="after")
    def _sections_fit(self) -> "Config":
        if self.training.init_from is not None and (self.tokenizer.src_model or self.tokenizer.tgt_model):
            raise ValueError("training.init_from brings its tokenizer; leave tokenizer.src_model and tgt_model out")
        if self.data.both_directions and not self.tokenizer.joint:
            raise ValueError("data.both_directions needs tokenizer.joint: true")
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings 'all' needs tokenizer.joint: true; use 'output' or 'none'")
        if self.data.streaming and self.training.max_epochs is not None:
            raise ValueError(
                "training.max_epochs needs the size of the data, which is not known with data.streaming; give "
                "training.max_steps alone"
            )
        if self.data.filters.max_tokens >= self.model.max_positions:
            raise ValueError(
                f"data.filters.max_tokens {self.data.filters.max_tokens} (and eos) does not fit "
                f"model.max_positions {self.model.max_positions}"
            )
        return self
