"""Config schema: type, range, default, help text and metadata of all keys."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from mtformer.config.data import DataConfig
from mtformer.config.section import Count, Fraction, Key, Pair, Positive, Section, key_of, nearest
from mtformer.config.tree import Tree
from mtformer.config.validation import validated
from mtformer.config.yaml_text import CHANGED

COMPOSE = "compose"
"""Our own normalization, see `mtformer.text.normalization`."""
NORMALIZATIONS = (COMPOSE, "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
"""Names of normalizations; all except the first are SentencePiece's."""


def is_rule_file(normalization: str) -> bool:
    """Return True if a value of `tokenizer.normalization` is the path of a rule file."""
    return normalization.endswith(".tsv")


def _check_normalization(normalization: str) -> str:
    if normalization not in NORMALIZATIONS and not is_rule_file(normalization):
        known = f"{', '.join(NORMALIZATIONS)}, or a rule file (.tsv)"
        raise ValueError(f"must be one of {known}, not '{normalization}'{nearest(normalization, [*NORMALIZATIONS])}")
    return normalization


NormalizationName = Annotated[str, AfterValidator(_check_normalization)]


class TokenizerConfig(Section):
    """SentencePiece tokenizer. Special ids are always pad 0, unk 1, bos 2, eos 3."""

    on_resume = "refuse"
    removed = {"sampling_alpha": 0.0}

    src_model: Annotated[str | None, Key(path="file")] = None
    """Existing SentencePiece model to use instead of training one (for both sides if joint)."""
    tgt_model: Annotated[str | None, Key(path="file")] = None
    """Existing SentencePiece model of the target side, if vocabularies are separate."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """SentencePiece algorithm."""
    vocab_size: Annotated[int, Field(ge=16, le=500_000)] = 8000
    """Vocabulary size, including special pieces (per side if not joint)."""
    joint: bool = True
    """Use one tokenizer for both languages."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the characters in the training text that the vocabulary covers; use 0.9995 for Japanese or Chinese."""
    byte_fallback: bool = False
    """Encode unknown characters as bytes, so that there are no unknown tokens (uses 256 pieces)."""
    normalization: Annotated[str, AfterValidator(_check_normalization), Key(path="name or file", keeps_saved=True)] = (
        COMPOSE
    )
    """Changes to text, which the model learns and writes: compose joins decomposed characters and runs of spaces, and
    removes control characters; SentencePiece's nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf and identity; or a rule file
    (.tsv). See docs/data.md."""
    user_symbols: list[str] = []
    """User-defined symbols that are never split (such as tags and markers)."""
    train_sentences: Positive = 2_000_000
    """Maximum number of lines (of both languages in total) for training the tokenizer, sampled uniformly. For languages
    without spaces, a million lines take 10 minutes and 3 GB of memory."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.joint and self.tgt_model is not None:
            raise ValueError("tgt_model is for separate vocabularies (joint: false); set a joint model as src_model")
        for symbol in self.user_symbols:
            if not symbol or symbol != "".join(symbol.split()) or symbol in ("<pad>", "<unk>", "<s>", "</s>"):
                raise ValueError(f"user_symbols: {symbol!r} is empty, has white space or is a special piece")
        return self


class ModelConfig(Section):
    """Transformer architecture; defaults are the base model of "Attention Is All You Need" with pre-norm."""

    on_resume = "refuse"

    d_model: Positive = 512
    """Width of embeddings and hidden states."""
    num_heads: Positive = 8
    """Number of attention heads; must divide `d_model`."""
    num_kv_heads: Positive | None = None
    """Number of key and value heads for grouped-query attention; default: `num_heads`."""
    d_ff: Positive = 2048
    """Inner width of the feed-forward layers."""
    num_encoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    """Number of encoder layers."""
    num_decoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    """Number of decoder layers."""
    dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.1
    """Dropout probability of embeddings and sub-layer outputs."""
    attention_dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """Dropout probability of attention weights; fused kernels need 0."""
    activation_dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """Dropout probability in the feed-forward layers, after the activation."""
    layer_drop: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """LayerDrop (Fan et al. 2020): probability with which training skips a sub-layer (attention or feed-forward) for a
    sentence. Nothing is skipped at inference. It saves no time."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalize before (pre) or after (post, as in the paper) each sub-layer; pre also normalizes the final output."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Normalization layer."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Activation of the feed-forward layers; swiglu and geglu add a third matrix for the gate."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Position encoding."""
    max_positions: Positive = 1024
    """Maximum sequence length in tokens, including eos."""
    tie_embeddings: Literal["all", "output", "none"] = "all"
    """Shared embeddings. all: source, target and output (needs a joint vocabulary); output: target and output."""
    output_bias: bool = False
    """Add a learned bias to the output logits, as in Marian models."""

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


CPU_BATCH_TOKENS = 4096
"""Size of micro-batches that `batch_tokens: auto` chooses on a CPU; larger ones take more memory and are no faster."""


class TrainingConfig(Section):
    """Optimization, checkpoints and logging."""

    removed = {"wandb": None}

    seed: Count = 1
    """Random seed for the initial weights, dropout, noise and the order of the data."""
    init_from: Annotated[str | None, Key(on_resume="refuse", path="file")] = None
    """Run or bundle to fine-tune: provides the initial weights (those that `translate` uses by default), the tokenizer,
    and all model and tokenizer settings that the config does not set. Incompatible settings are an error."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Key(on_resume="same")] = "auto"
    """Device; auto: CUDA if available."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], Key(on_resume="same")] = "auto"
    """Precision; auto: on CUDA, bf16 (fp16 without native bf16 support); on a CPU, bf16 if faster, otherwise fp32. fp16
    (CUDA only) uses a gradient scaler."""
    deterministic: bool = False
    """Use only deterministic CUDA kernels, some of which are slower; CPU kernels are always deterministic."""
    sharded: bool = False
    """Shard weights, gradients and optimizer states over the processes of `torchrun` (FSDP2), for models that do not
    fit on one device; otherwise, each process has a full copy (DDP)."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Compile the model with `torch.compile` (CUDA only). auto: if training is long enough for this to save time."""
    batch_tokens: Positive | Literal["auto"] = 4096
    """Micro-batch size, including padding: maximum of (number of pairs) x (length of the longest side in tokens). auto:
    as large as the device and its memory allow; needs `step_tokens`."""
    accumulation_steps: Positive = 1
    """Number of micro-batches per optimizer step and process."""
    step_tokens: Positive | None = None
    """Tokens per optimizer step in all processes, including padding; sets `accumulation_steps`."""
    max_steps: Annotated[Positive, Key(on_resume="same")] = 100_000
    """Total number of optimizer steps."""
    max_epochs: Annotated[Positive | None, Key(on_resume="same")] = None
    """Maximum number of epochs; training ends at `max_steps` or `max_epochs`, whichever comes first."""
    max_minutes: Annotated[float | None, Field(gt=0.0), Key(on_resume="same")] = None
    """Time limit in minutes, including preparation and validation. The number of steps, at most `max_steps`, is chosen
    by the measured speed, and the schedule is stretched over them."""
    optimizer: Annotated[Literal["adam", "adamw", "muon"], Key(on_resume="refuse")] = "adam"
    """Optimizer; adamw decouples weight decay from the gradient; muon also orthogonalizes the updates of matrices."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 7e-4
    """Peak learning rate; with `noam`, the scale factor of the schedule (1.0 in the paper)."""
    betas: Pair = (0.9, 0.98)
    """Adam's decay rates for the running averages of the gradient and its square."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-9
    """Term added to Adam's denominator for numerical stability."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight decay of matrices; not applied to biases, norms and embeddings."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "warmup_stable_decay", "constant"] = "inverse_sqrt"
    """Learning rate schedule after the warmup."""
    warmup_steps: Count = 4000
    """Number of linear warmup steps, for all schedules."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Maximum gradient norm for clipping; 0: no clipping."""
    label_smoothing: Fraction = 0.1
    """Probability mass taken from the target token and spread evenly over the vocabulary (Szegedy et al. 2016)."""
    token_dropout: Fraction = 0.0
    """Probability with which the embedding of a source or target-input token is set to zero in training."""
    consistency: Literal["none", "rdrop", "simcut"] = "none"
    """Consistency regularization: a second pass over each batch, and a penalty for predictions that differ between the
    passes. It doubles the time and memory of a step. rdrop: the passes have different dropout masks, and both are
    trained on the targets; simcut: the second pass also has embeddings of tokens set to zero (`cutoff`)."""
    consistency_weight: Annotated[float, Field(ge=0.0)] = 3.0
    """Weight of the KL divergence between the predictions of both passes."""
    consistency_start: Count = 0
    """Number of first steps without consistency regularization, which improves only long training."""
    cutoff: Fraction = 0.05
    """Share of the source and target-input tokens whose embeddings are set to zero in SimCut's second pass."""
    log_every: Annotated[Positive, Key(on_resume="same")] = 50
    """Number of steps between log lines."""
    validate_every: Annotated[Positive, Key(on_resume="same")] = 1000
    """Number of steps between validations; each saves a checkpoint."""
    best_metric: Annotated[str, Key(on_resume="same")] = "bleu"
    """Dev metric for selecting the best checkpoint and for early stopping: loss, perplexity, bleu or chrf over all dev
    sets, or on one of several dev sets or directions (`bleu NAME`, as in metrics.jsonl)."""
    patience: Annotated[Positive | None, Key(on_resume="same")] = None
    """Early stopping: number of validations without improvement of `best_metric` before training ends; null: off."""
    keep_last: Annotated[Positive, Key(on_resume="same")] = 5
    """Number of latest checkpoints to keep."""
    keep_best: Annotated[Positive, Key(on_resume="same")] = 1
    """Number of best checkpoints to keep."""
    ema_decay: Fraction = 0.0
    """Decay of the exponential moving average of the weights, which is validated and saved, such as 0.999; 0: off."""
    average_last: Annotated[Count, Key(on_resume="same", side_output=True)] = 0
    """Number of latest checkpoints to average and validate at the end; 0: no averaging. Commands use the average, or
    the best checkpoint if its `best_metric` is more than 1 percent better."""
    sample_sentences: Annotated[Count, Key(on_resume="same")] = 3
    """Number of sentences of each dev set (and direction) whose translations are logged and saved to samples.jsonl."""
    tensorboard: Annotated[bool, Key(on_resume="same", has_effect=False, side_output=True)] = False
    """Write TensorBoard events to RUN/tensorboard (extra `tensorboard`)."""
    report: Annotated[bool, Key(on_resume="same", has_effect=False, side_output=True)] = False
    """Write RUN/report.html at the end of `mtformer train`, as `mtformer report` does."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last {self.average_last} is above keep_last {self.keep_last}")
        if self.batch_tokens == "auto" and self.step_tokens is None:
            raise ValueError("batch_tokens: auto needs step_tokens, the number of tokens per optimizer step")
        if self.step_tokens is not None and self.accumulation_steps != 1:
            raise ValueError("step_tokens sets accumulation_steps; remove one of them")
        if self.max_minutes is not None and self.max_epochs is not None:
            raise ValueError("max_minutes and max_epochs cannot be combined; remove one of them")
        if self.optimizer == "muon" and self.sharded:
            raise ValueError("muon needs whole matrices; use adamw, or set sharded: false")
        if self.consistency == "none" and (self.consistency_weight, self.consistency_start) != (3.0, 0):
            remedy = "also set consistency: rdrop or simcut, or set these keys to their defaults, 3.0 and 0"
            raise ValueError(f"consistency_weight and consistency_start are for R-Drop and SimCut; {remedy}")
        if self.consistency != "simcut" and self.cutoff != 0.05:
            raise ValueError("cutoff is for SimCut; also set consistency: simcut")
        return self

    @property
    def micro_batch_tokens(self) -> int:
        """`batch_tokens`, or a small size until one is chosen (see `preflight.choose_batches`)."""
        return self.batch_tokens if self.batch_tokens != "auto" else CPU_BATCH_TOKENS


MAX_HYPOTHESES = 1000
"""Maximum beam size. The decoder cache grows with its square: for 1,000 beams, up to 1 GB per sentence."""
NumHypotheses = Annotated[int, Field(ge=1, le=MAX_HYPOTHESES)]
Stopping = Literal["auto", "ended", "estimate", "certain"]


class DecodingConfig(Section):
    """Search and sampling in `translate`, `eval`, `serve` and validation."""

    on_resume = "same"
    removed = {
        "coverage_penalty": 0.0, "beam_groups": 1, "diversity_penalty": 0.0, "mbr_metric": "chrf",
        "replace_unknowns": False,
    }  # fmt: skip

    beam_size: NumHypotheses = 5
    """Beam size; 1: greedy search."""
    n_best: Annotated[NumHypotheses, Key(in_validation=False)] = 1
    """Number of translations per source sentence."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Exponent alpha in score = log-probability / length^alpha."""
    early_stopping: Annotated[Stopping, Key(in_validation=False, keeps_saved=True)] = "auto"
    """Stop when `beam_size` hypotheses are finished (`ended`), no unfinished hypothesis scores higher (`estimate`),
    or none can still win (`certain`). auto: `estimate`, or with CTranslate2, which does not support it, when twice
    `beam_size` hypotheses are finished."""
    max_length_ratio: Annotated[float, Field(gt=0.0)] = 2.0
    """Maximum length in tokens: this ratio x number of source tokens + 10."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Minimum length in tokens: this ratio x number of source tokens."""
    max_length: Positive | None = None
    """Maximum number of tokens in any translation."""
    min_length: Count = 0
    """Minimum number of tokens in any translation."""
    no_repeat_ngram_size: Count = 0
    """Forbid repeated n-grams of this length; 0: off."""
    repetition_penalty: Annotated[float, Field(ge=1.0)] = 1.0
    """Factor applied to the log-probabilities of tokens already generated; 1: no penalty."""
    sampling: Annotated[bool, Key(in_validation=False)] = False
    """Draw translations at random instead of searching."""
    temperature: Annotated[float, Field(gt=0.0), Key(in_validation=False)] = 1.0
    """Softmax temperature for sampling."""
    top_k: Annotated[Count, Key(in_validation=False)] = 0
    """Sample from the K most probable tokens; 0: all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0), Key(in_validation=False)] = 1.0
    """Sample from the most probable tokens with total probability P (nucleus sampling)."""
    seed: Annotated[Count, Key(in_validation=False)] = 1
    """Sampling seed; results rarely depend on batching, through rounding."""
    mbr_samples: Annotated[int, Field(ge=0, le=MAX_HYPOTHESES), Key(in_validation=False)] = 0
    """Minimum Bayes risk (MBR): draw this many samples and return the one with the highest mean chrF; 0: off."""
    split: Literal["auto", "always", "never"] = "auto"
    """Translate each sentence of a line separately: auto, always or never. See docs/decoding.md."""
    keep: Annotated[Literal["numbers"] | None, Key(in_validation=False)] = None
    """numbers: return the first hypothesis that keeps the numbers, URLs and e-mail addresses of the source."""
    batch_tokens: Annotated[Positive | None, Key(has_effect=False)] = None
    """Batch size in tokens: sentences x beam size x length of the longest source; null: 8,192, or 65,536 on CUDA."""
    validation_beam_size: Annotated[NumHypotheses, Key(is_option=False)] = 1
    """Beam size for decoding the dev set during training."""

    def for_validation(self) -> "DecodingConfig":
        """Return the settings for validation: `validation_beam_size`, a single translation, no sampling."""
        kept = {key for key in type(self).model_fields if key_of(DecodingConfig, key).in_validation}
        return DecodingConfig.model_validate({**self.model_dump(include=kept), "beam_size": self.validation_beam_size})

    def output_settings(self) -> dict[str, Any]:
        """Return the settings that affect a translation, as JSON values."""
        keys = {name: key_of(DecodingConfig, name) for name in type(self).model_fields}
        included = {name for name, key in keys.items() if key.has_effect and key.is_option}
        return self.model_dump(mode="json", include=included)

    @property
    def draws(self) -> bool:
        """Return True if translations are sampled, including for MBR."""
        return self.sampling or self.mbr_samples > 0

    @property
    def num_rows(self) -> int:
        """Number of hypotheses that are computed together for a sentence."""
        if self.draws:
            return self.mbr_samples or self.n_best
        return self.beam_size

    @model_validator(mode="after")
    def _fits(self) -> "DecodingConfig":
        low, high = self.min_length_ratio, self.max_length_ratio
        if low > high:
            raise ValueError(f"min_length_ratio {low} is above max_length_ratio {high}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        if self.n_best > self.num_rows:
            what = "mbr_samples" if self.mbr_samples else "beam_size"
            raise ValueError(f"n_best {self.n_best} is above {what} {self.num_rows}; set {what} to at least n_best")
        for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("seed", 1)):
            if getattr(self, name) != neutral and not self.draws:
                raise ValueError(f"{name} is for sampling; also set sampling: true")
        if self.keep and self.num_rows == 1:
            raise ValueError("keep chooses among several hypotheses; set beam_size (with sampling: n_best) above 1")
        return self


class EvaluationConfig(Section):
    """sacreBLEU settings; scores are computed on detokenized text."""

    on_resume = "same"

    bleu_tokenizer: Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"] = "auto"
    """sacreBLEU tokenizer for BLEU. auto: zh for Chinese, ja-mecab for Japanese (extra `ja`), ko-mecab for Korean
    (extra `ko`), char without that extra, and for Thai, Lao, Khmer, Burmese and Tibetan (where TER, on words between
    spaces, says little), otherwise 13a."""
    lowercase: bool = False
    """Ignore case when computing scores."""


class Config(Section):
    """Configuration of an experiment."""

    data: DataConfig
    """Corpora, languages, filters and noise."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer and vocabulary."""
    model: ModelConfig = ModelConfig()
    """Transformer architecture."""
    training: TrainingConfig = TrainingConfig()
    """Optimization, checkpoints and logging."""
    decoding: DecodingConfig = DecodingConfig()
    """Translation: search, sampling and constraints."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Scoring."""

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """Return the config with other values of some keys.

        Args:
            values: new values by dotted key, such as `{"training.learning_rate": 1e-4, "data.train.0.src": "a.en"}`. An
                index names a list item; the next index appends one. A value replaces the old one: mappings are not
                merged. Setting a key of another type of source removes the keys of the old type.

        The values are validated like those of a file. Raise ConfigError with a line for each error, which names the
        key.
        """
        tree = Tree(Config, self.model_dump(mode="json"), {(): CHANGED})
        for key, value in values.items():
            tree.replace(key, value, CHANGED)
        return validated(tree.values, tree.origins, Config)

    @model_validator(mode="after")
    def _sections_fit(self) -> "Config":
        if self.training.init_from is not None and (self.tokenizer.src_model or self.tokenizer.tgt_model):
            raise ValueError("training.init_from provides the tokenizer; remove tokenizer.src_model and tgt_model")
        best, names, metrics = self.training.best_metric, self.data.dev_names, ("loss", "perplexity", "bleu", "chrf")
        known = [f"{metric} {name}".rstrip() for name in ("", *names) for metric in metrics]
        # Any name is valid in a bundle, which lists no data.
        if best not in known and (self.data.sources or best.partition(" ")[0] not in metrics):
            of = f", optionally followed by a dev set ({', '.join(names)})" if names else ""
            meant = f"not '{best}'{nearest(best, known)}"
            raise ValueError(f"training.best_metric must be one of {', '.join(metrics)}{of}, {meant}")
        if self.data.both_directions and not self.tokenizer.joint:
            raise ValueError("data.both_directions needs tokenizer.joint: true")
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings 'all' needs tokenizer.joint: true; use 'output' or 'none'")
        num_tags = (self.data.language_tags == "source") + any(one.tag for one in self.data.corpora.values())
        if self.data.filters.max_tokens + num_tags >= self.model.max_positions:
            what = f"data.filters.max_tokens {self.data.filters.max_tokens} (plus eos and tags)"
            limit = f"model.max_positions {self.model.max_positions}"
            raise ValueError(f"{what} exceeds {limit}; lower the former or raise the latter")
        return self
