"""The config schema: all keys with type, range, default, help text and metadata."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mtformer.config.data import DataConfig
from mtformer.config.section import Count, Fraction, Key, Pair, Positive, Section, key_of


class TokenizerConfig(Section):
    """SentencePiece. Special ids are always pad 0, unk 1, bos 2, eos 3."""

    on_resume = "refuse"

    src_model: Annotated[str | None, Key(path="file")] = None
    """An existing model to use instead of training one (when joint: for both sides)."""
    tgt_model: Annotated[str | None, Key(path="file")] = None
    """An existing target model, for separate vocabularies."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """Algorithm of SentencePiece."""
    vocab_size: Annotated[int, Field(ge=16, le=500_000)] = 8000
    """Pieces, special ones included (for each side when not joint)."""
    joint: bool = True
    """One model for both languages."""
    character_coverage: Annotated[float, Field(ge=0.9, le=1.0)] = 1.0
    """Share of characters that get a piece; 0.9995 for Japanese or Chinese."""
    byte_fallback: bool = False
    """Spell unknown characters as bytes, so that nothing is ever unknown (costs 256 pieces)."""
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's normalization rule; the `_cf` rules fold case."""
    user_symbols: list[str] = []
    """Pieces that are always kept whole (language tags, markers)."""
    train_sentences: Positive = 2_000_000
    """Maximum number of lines for training the tokenizer, of both languages together, sampled evenly; a million lines
    of languages without spaces take 10 minutes and 3 GB of memory."""
    sampling_alpha: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """Subword sampling in training. 0: off. unigram: smoothing of the sampling (0.1 to 0.5);
    bpe: the share of merges dropped (BPE-dropout, 0.1)."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.joint and self.tgt_model is not None:
            raise ValueError("tgt_model is for separate vocabularies (joint: false); a joint model is src_model")
        return self


class ModelConfig(Section):
    """The Transformer of "Attention Is All You Need"; the defaults are its base model, pre-norm."""

    on_resume = "refuse"

    d_model: Positive = 512
    """Width of embeddings and layers."""
    num_heads: Positive = 8
    """Attention heads; must divide `d_model`."""
    num_kv_heads: Positive | None = None
    """Grouped-query attention: number of key and value heads; default: `num_heads`."""
    d_ff: Positive = 2048
    """Width inside the feed-forward layers."""
    num_encoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    """Layers on the source side."""
    num_decoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    """Layers on the target side."""
    dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.1
    """Dropout of the embeddings and of each sub-layer's output."""
    attention_dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """Dropout of attention weights; fused kernels need 0."""
    activation_dropout: Annotated[Fraction, Key(on_resume="warn")] = 0.0
    """Dropout inside the feed-forward layer, after its activation."""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: before each sub-layer, and once at the end; post: after it, as in the paper."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of normalization."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Activation of the feed-forward layers; swiglu and geglu have a third matrix, the gate."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Position encoding."""
    max_positions: Positive = 1024
    """Longest sequence in tokens, eos included."""
    tie_embeddings: Literal["all", "output", "none"] = "all"
    """all: source, target and output share one matrix (joint vocabulary); output: target and output; none."""
    output_bias: bool = False
    """Add a learned bias to each piece's logit (as Marian models have)."""

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
    """Optimization, checkpoints and logging."""

    seed: Count = 1
    """Seed of the initial weights, dropout, subword sampling and the order of the data."""
    init_from: Annotated[str | None, Key(on_resume="refuse", path="file")] = None
    """A run or bundle that provides the initial weights (those that `translate` uses by default), the tokenizer, and
    the settings of model and tokenizer that the config does not give; settings that do not fit them are refused."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Key(on_resume="same")] = "auto"
    """auto: CUDA when there is one."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], Key(on_resume="same")] = "auto"
    """auto: on CUDA bf16, or fp16 without native bf16; on a CPU bf16 where it is faster, else fp32. fp16 (CUDA only)
    uses a gradient scaler."""
    deterministic: bool = False
    """On CUDA use only deterministic kernels, some of which are slower; all CPU kernels are deterministic."""
    sharded: bool = False
    """Shard weights, gradients and moments over the processes of `torchrun` (FSDP2), for a model too large for one
    device; else each process has a copy (DDP)."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Run the model through `torch.compile` (CUDA only). auto: if the run is long enough to repay the compilation."""
    batch_tokens: Positive = 4096
    """A micro-batch of n pairs has n x (longest side, in tokens) up to this."""
    accumulation_steps: Positive = 1
    """Micro-batches per optimizer step and process."""
    max_steps: Annotated[Positive, Key(on_resume="same")] = 100_000
    """Total number of optimizer steps."""
    max_epochs: Annotated[Positive | None, Key(on_resume="same")] = None
    """Stop after this number of passes over the data, if that comes first."""
    optimizer: Annotated[Literal["adam", "adamw"], Key(on_resume="refuse")] = "adam"
    """adamw: the weight decay is not part of the gradient."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 7e-4
    """Peak learning rate; with `noam` the factor in the paper's formula (the paper: 1.0)."""
    betas: Pair = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-9
    """Added to the denominator of Adam."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight decay of matrices; biases, norms and embeddings have none."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Learning rate after the warm-up."""
    warmup_steps: Count = 4000
    """Steps of linear warm-up, with each schedule."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Maximum gradient norm; 0: no clipping."""
    label_smoothing: Fraction = 0.1
    """Probability mass spread evenly over the vocabulary instead of the target token (Szegedy et al. 2016)."""
    log_every: Annotated[Positive, Key(on_resume="same")] = 50
    """Steps from one log line to the next."""
    validate_every: Annotated[Positive, Key(on_resume="same")] = 1000
    """Steps from one validation, and checkpoint, to the next."""
    best_metric: Annotated[Literal["loss", "perplexity", "bleu", "chrf"], Key(on_resume="same")] = "bleu"
    """The dev metric that chooses the best checkpoint and stops early."""
    patience: Annotated[Positive | None, Key(on_resume="same")] = None
    """Stop after this number of validations without a better `best_metric`; null: never."""
    keep_last: Annotated[Positive, Key(on_resume="same")] = 5
    """The newest checkpoints kept."""
    keep_best: Annotated[Positive, Key(on_resume="same")] = 1
    """The best checkpoints kept."""
    ema_decay: Annotated[Fraction, Key(on_resume="same")] = 0.0
    """Validate and keep exponential moving averages of the weights with this decay per step (such as 0.999); 0: the
    weights themselves."""
    average_last: Annotated[Count, Key(on_resume="same", side_output=True)] = 0
    """Number of newest checkpoints whose weights are averaged at the end and validated; 0: none. Commands use the
    better of the average and the best checkpoint by `best_metric`."""
    sample_sentences: Annotated[Count, Key(on_resume="same")] = 3
    """Dev sentences whose translations are logged, and kept in samples.jsonl, at each validation."""
    tensorboard: Annotated[bool, Key(on_resume="same", has_effect=False, side_output=True)] = False
    """Write TensorBoard events too (extra `tensorboard`)."""
    report: Annotated[bool, Key(on_resume="same", has_effect=False, side_output=True)] = False
    """At the end write RUN/report.html, as `mtformer report` does (extra `report`)."""
    wandb: Annotated[str | None, Key(on_resume="same", has_effect=False, side_output=True)] = None
    """Send the figures to this project of Weights & Biases too (extra `wandb`); WANDB_MODE=offline keeps them here."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last {self.average_last} is above keep_last {self.keep_last}")
        return self


MAX_HYPOTHESES = 1000
"""The caches of search grow with the square of the number of beams: 1,000 take up to 1 GB for one sentence."""
NumHypotheses = Annotated[int, Field(ge=1, le=MAX_HYPOTHESES)]
Stopping = Literal["ended", "estimate", "certain"]


class DecodingConfig(Section):
    """Search and sampling in `translate`, `eval`, `serve` and validation."""

    on_resume = "same"

    beam_size: NumHypotheses = 5
    """Beam size; 1: greedy search."""
    n_best: Annotated[NumHypotheses, Key(in_validation=False)] = 1
    """Number of translations per source sentence."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Exponent alpha in score = log-probability / length^alpha."""
    coverage_penalty: Annotated[float, Field(ge=0.0), Key(in_validation=False)] = 0.0
    """Weight beta in ranking finished hypotheses by score + beta x sum of log(min(1, attention)) over the source."""
    early_stopping: Annotated[Stopping, Key(in_validation=False)] = "ended"
    """Stop when `beam_size` hypotheses are finished (`ended`), none of the unfinished scores higher (`estimate`), or
    none can still win (`certain`)."""
    max_length_ratio: Annotated[float, Field(gt=0.0)] = 2.0
    """Maximum length: this ratio x source tokens + 10."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Minimum length: this ratio x source tokens."""
    max_length: Positive | None = None
    """Maximum number of tokens of any translation."""
    min_length: Count = 0
    """Minimum number of tokens of any translation."""
    no_repeat_ngram_size: Count = 0
    """Forbid repeated n-grams of this length; 0: off."""
    repetition_penalty: Annotated[float, Field(ge=1.0)] = 1.0
    """Factor on log-probabilities of tokens already generated; 1: no penalty."""
    beam_groups: Annotated[Positive, Key(in_validation=False)] = 1
    """Number of groups of diverse beam search."""
    diversity_penalty: Annotated[float, Field(ge=0.0), Key(in_validation=False)] = 0.0
    """With beam groups: penalty for tokens that earlier groups chose at the same step."""
    sampling: Annotated[bool, Key(in_validation=False)] = False
    """Draw translations at random instead of searching."""
    temperature: Annotated[float, Field(gt=0.0), Key(in_validation=False)] = 1.0
    """Softmax temperature of sampling."""
    top_k: Annotated[Count, Key(in_validation=False)] = 0
    """Sample from the K most probable tokens; 0: all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0), Key(in_validation=False)] = 1.0
    """Sample from the most probable tokens with total probability P (nucleus sampling)."""
    seed: Annotated[Count, Key(in_validation=False)] = 1
    """Sampling seed; results do not depend on batching."""
    mbr_samples: Annotated[int, Field(ge=0, le=MAX_HYPOTHESES), Key(in_validation=False)] = 0
    """Minimum Bayes risk (MBR): draw this many samples and return the one most similar to the others; 0: off."""
    mbr_metric: Annotated[Literal["chrf", "bleu"], Key(in_validation=False)] = "chrf"
    """Similarity metric of MBR, chrf or bleu."""
    split: Literal["auto", "always", "never"] = "auto"
    """Translate each sentence of a line separately: auto, always or never. See docs/decoding.md."""
    replace_unknowns: bool = False
    """Replace unknown tokens with the most-attended source word."""
    batch_tokens: Annotated[Positive, Key(has_effect=False)] = 8192
    """Batch size in tokens: sentences x beam size x length of the longest source."""
    validation_beam_size: Annotated[NumHypotheses, Key(is_option=False)] = 1
    """Beam size for decoding the dev set during training."""

    def for_validation(self) -> "DecodingConfig":
        """Return the section for validation: `validation_beam_size`, a single translation, no sampling."""
        kept = {key for key in type(self).model_fields if key_of(DecodingConfig, key).in_validation}
        return DecodingConfig.model_validate({**self.model_dump(include=kept), "beam_size": self.validation_beam_size})

    def output_settings(self) -> dict[str, Any]:
        """Return the settings that affect a translation, as JSON values."""
        keys = {name: key_of(DecodingConfig, name) for name in type(self).model_fields}
        return self.model_dump(
            mode="json", include={name for name, key in keys.items() if key.has_effect and key.is_option}
        )

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
        if self.min_length_ratio > self.max_length_ratio:
            raise ValueError(
                f"min_length_ratio {self.min_length_ratio} is above max_length_ratio {self.max_length_ratio}"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        if self.n_best > self.num_rows:
            what = "mbr_samples" if self.mbr_samples else "beam_size"
            raise ValueError(f"n_best {self.n_best} is above {what} {self.num_rows}; set {what} to at least n_best")
        if self.beam_size % self.beam_groups:
            raise ValueError(f"beam_groups {self.beam_groups} does not divide beam_size {self.beam_size}")
        if (self.beam_groups > 1) != (self.diversity_penalty > 0):
            raise ValueError("beam_groups above 1 and diversity_penalty above 0 require each other; set both")
        if self.beam_groups > 1 and self.draws:
            raise ValueError("beam_groups is for beam search; remove it or sampling")
        for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("seed", 1)):
            if getattr(self, name) != neutral and not self.draws:
                raise ValueError(f"{name} is for sampling; also set sampling: true")
        if self.mbr_metric != "chrf" and not self.mbr_samples:
            raise ValueError(f"mbr_metric {self.mbr_metric} requires mbr_samples; set mbr_samples too")
        return self


class EvaluationConfig(Section):
    """sacreBLEU's settings, on detokenized text."""

    on_resume = "same"

    bleu_tokenizer: Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"] = "auto"
    """sacreBLEU's tokenizer for BLEU. auto: by target language, zh for Chinese, ja-mecab for Japanese (extra `ja`),
    ko-mecab for Korean (extra `ko`), char for these two without the extra, else 13a."""
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
    """Optimization, checkpoints and logging."""
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
        if self.data.filters.max_tokens >= self.model.max_positions:
            raise ValueError(
                f"data.filters.max_tokens {self.data.filters.max_tokens} (and eos) does not fit "
                f"model.max_positions {self.model.max_positions}; lower the former, or raise the latter"
            )
        return self
