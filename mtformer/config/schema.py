"""Config schema: type, range, default, help text and metadata of all keys."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mtformer.config.data import DataConfig
from mtformer.config.section import (
    ARGOS,
    CTRANSLATE2,
    HUGGINGFACE,
    Condition,
    Count,
    Fraction,
    Key,
    Pair,
    Positive,
    Section,
    key_of,
    nearest,
)
from mtformer.config.tree import Tree
from mtformer.config.validation import validated
from mtformer.config.yaml_text import CHANGED

ALL_EXPORTS = (CTRANSLATE2, HUGGINGFACE, ARGOS)
"""Declaration of a key of the model or its tokenizer that every export supports."""
TRAINING_ONLY = (CTRANSLATE2.ignored, HUGGINGFACE.ignored, ARGOS.ignored)
"""Declaration of a key of the model or its tokenizer that has no effect after training."""
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
        suggestion = nearest(normalization, list(NORMALIZATIONS))
        raise ValueError(f"must be one of {known}, not '{normalization}'{suggestion}")
    return normalization


NormalizationName = Annotated[str, AfterValidator(_check_normalization)]
"""Name of a normalization, or path of a rule file."""


SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
"""Pieces of every vocabulary, in the order of their ids."""


class TokenizerConfig(Section):
    """SentencePiece tokenizer. Special ids are always pad 0, unk 1, bos 2, eos 3."""

    on_resume = "refuse"
    removed = {"sampling_alpha": 0.0}

    src_model: Annotated[str | None, Key(path="file", exports=TRAINING_ONLY)] = None
    """Existing SentencePiece model to use instead of training one (for both sides if joint)."""
    tgt_model: Annotated[str | None, Key(path="file", exports=TRAINING_ONLY)] = None
    """Existing SentencePiece model of the target side, if vocabularies are separate."""
    model_type: Annotated[Literal["unigram", "bpe"], Key(exports=ALL_EXPORTS)] = "unigram"
    """SentencePiece algorithm."""
    vocab_size: Annotated[int, Field(ge=16, le=500_000), Key(exports=ALL_EXPORTS)] = 8000
    """Vocabulary size, including special pieces (per side if not joint)."""
    joint: Annotated[bool, Key(exports=(CTRANSLATE2, HUGGINGFACE, ARGOS.only(True)))] = True
    """Use one tokenizer for both languages."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0), Key(exports=ALL_EXPORTS)] = 1.0
    """Share of the characters in the training text that the vocabulary covers; use 0.9995 for languages with thousands
    of characters, such as Chinese, Japanese and Korean."""
    byte_fallback: Annotated[bool, Key(exports=ALL_EXPORTS)] = False
    """Encode unknown characters as bytes, so that there are no unknown tokens (uses 256 pieces)."""
    normalization: Annotated[NormalizationName, Key(path="name or file", keeps_saved=True, exports=ALL_EXPORTS)] = (
        COMPOSE
    )
    """Changes to text, which the model learns and writes: compose joins decomposed characters and runs of spaces, and
    removes control characters; SentencePiece's nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf and identity; or a rule file
    (.tsv). See docs/data.md."""
    user_symbols: Annotated[list[str], Key(exports=ALL_EXPORTS)] = []
    """User-defined symbols that are never split (such as tags and markers)."""
    train_sentences: Annotated[Positive, Key(exports=TRAINING_ONLY)] = 2_000_000
    """Maximum number of lines (of both languages in total) for training the tokenizer, sampled uniformly. For languages
    without spaces, a million lines take 10 minutes and 3 GB of memory."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.joint and self.tgt_model is not None:
            raise ValueError("tgt_model is for separate vocabularies (joint: false); set a joint model as src_model")
        for symbol in self.user_symbols:
            has_space = symbol != "".join(symbol.split())
            if not symbol or has_space or symbol in SPECIAL_PIECES:
                raise ValueError(
                    f"user_symbols: {symbol!r} is empty, has white space or is a special piece; remove or rename it"
                )
        return self


POST_NORM = Condition("norm_position: post", lambda model: model.norm_position == "post")
"""Only the class for post-norm models has untied embeddings in Hugging Face."""
ONE_HEAD_PER_QUERY = Condition("num_heads as num_kv_heads", lambda model: model.num_kv_heads == model.num_heads)
"""Each query head has keys and values of its own, as without grouped-query attention."""


class ModelConfig(Section):
    """Transformer architecture; defaults are the base model of "Attention Is All You Need" with pre-norm."""

    on_resume = "refuse"

    d_model: Annotated[Positive, Key(exports=ALL_EXPORTS)] = 512
    """Width of embeddings and hidden states."""
    num_heads: Annotated[Positive, Key(exports=ALL_EXPORTS)] = 8
    """Number of attention heads; must divide `d_model`."""
    num_kv_heads: Annotated[
        Positive | None, Key(exports=(CTRANSLATE2, HUGGINGFACE.only(None, unless=ONE_HEAD_PER_QUERY), ARGOS))
    ] = None
    """Number of key and value heads for grouped-query attention; default: `num_heads`."""
    d_ff: Annotated[Positive, Key(exports=ALL_EXPORTS)] = 2048
    """Inner width of the feed-forward layers."""
    num_encoder_layers: Annotated[int, Field(ge=1, le=1000), Key(exports=ALL_EXPORTS)] = 6
    """Number of encoder layers."""
    num_decoder_layers: Annotated[int, Field(ge=1, le=1000), Key(exports=ALL_EXPORTS)] = 6
    """Number of decoder layers."""
    dropout: Annotated[Fraction, Key(on_resume="warn", exports=TRAINING_ONLY)] = 0.1
    """Dropout probability of embeddings and sub-layer outputs."""
    attention_dropout: Annotated[Fraction, Key(on_resume="warn", exports=TRAINING_ONLY)] = 0.0
    """Dropout probability of attention weights; fused kernels need 0."""
    activation_dropout: Annotated[Fraction, Key(on_resume="warn", exports=TRAINING_ONLY)] = 0.0
    """Dropout probability in the feed-forward layers, after the activation."""
    layer_drop: Annotated[Fraction, Key(on_resume="warn", exports=TRAINING_ONLY)] = 0.0
    """LayerDrop (Fan et al. 2020): probability with which training skips a sub-layer (attention or feed-forward) for a
    sentence. Nothing is skipped at inference. It saves no time."""
    norm_position: Annotated[Literal["pre", "post"], Key(exports=ALL_EXPORTS)] = "pre"
    """Normalize before (pre) or after (post, as in the paper) each sub-layer; pre also normalizes the final output."""
    norm: Annotated[
        Literal["layernorm", "rmsnorm"], Key(exports=(CTRANSLATE2, HUGGINGFACE.only("layernorm"), ARGOS))
    ] = "layernorm"
    """Normalization layer."""
    activation: Annotated[
        Literal["relu", "gelu", "silu", "swiglu", "geglu"],
        Key(exports=(CTRANSLATE2, HUGGINGFACE.only("relu", "gelu", "silu"), ARGOS)),
    ] = "relu"
    """Activation of the feed-forward layers; swiglu and geglu add a third matrix for the gate."""
    positions: Annotated[
        Literal["sinusoidal", "learned", "rotary"],
        Key(exports=(CTRANSLATE2, HUGGINGFACE.only("sinusoidal"), ARGOS)),
    ] = "sinusoidal"
    """Position encoding."""
    max_positions: Annotated[Positive, Key(exports=ALL_EXPORTS)] = 1024
    """Maximum sequence length in tokens, including eos."""
    tie_embeddings: Annotated[
        Literal["all", "output", "none"],
        Key(exports=(CTRANSLATE2, HUGGINGFACE.only("all", unless=POST_NORM), ARGOS)),
    ] = "all"
    """Shared embeddings. all: source, target and output (needs a joint vocabulary); output: target and output."""
    output_bias: Annotated[bool, Key(exports=ALL_EXPORTS)] = False
    """Add a learned bias to the output logits, as in Marian models."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ModelConfig":
        head_width, remainder = divmod(self.d_model, self.num_heads)
        if remainder:
            raise ValueError(f"num_heads {self.num_heads} does not divide d_model {self.d_model}; change one of them")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}; change one of them"
            )
        if self.positions == "rotary" and head_width % 2:
            raise ValueError(
                f"rotary positions need an even head width, not {head_width}; change d_model or num_heads, or set "
                "positions: learned"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"sinusoidal positions need an even d_model, not {self.d_model}; change it, or set positions: learned"
            )
        return self


CPU_BATCH_TOKENS = 4096
"""Size of micro-batches that `batch_tokens: auto` chooses on a CPU; larger ones take more memory and are no faster."""


IS_CONSISTENT = Condition("consistency: rdrop or simcut", lambda training: training.consistency != "none")
"""There is consistency regularization."""
IS_SIMCUT = Condition("consistency: simcut", lambda training: training.consistency == "simcut")
"""The consistency regularization is SimCut."""


TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
"""Name of a tracker, which is that of its package."""


def _from_tensorboard(value: Any) -> Any:
    """Return the trackers for a value of the earlier key `tensorboard`, which was true or false."""
    if isinstance(value, bool):
        return ["tensorboard"] if value else []
    return value


class TrainingConfig(Section):
    """Optimization, checkpoints and logging."""

    removed = {"wandb": None}
    renamed = {"tensorboard": "trackers"}

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
    """Time limit in minutes, including preparation and validation. The number of steps, at most `max_steps`, is planned
    from the measured speed until the end; the schedule is passed faster or more slowly then, without a jump of the
    learning rate."""
    optimizer: Annotated[Literal["adam", "adamw", "muon"], Key(on_resume="refuse")] = "adam"
    """Optimizer; adamw decouples weight decay from the gradient; muon does so too, and orthogonalizes the updates of
    the matrices of all layers."""
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
    consistency_weight: Annotated[float, Field(ge=0.0), Key(only_with=IS_CONSISTENT)] = 3.0
    """Weight of the KL divergence between the predictions of both passes."""
    consistency_start: Annotated[Count, Key(only_with=IS_CONSISTENT)] = 0
    """Number of first steps without consistency regularization, which improves only long training."""
    cutoff: Annotated[Fraction, Key(only_with=IS_SIMCUT)] = 0.05
    """Share of the source and target-input tokens whose embeddings are set to zero in SimCut's second pass."""
    log_every: Annotated[Positive, Key(on_resume="same")] = 50
    """Number of steps between log lines."""
    validate_every: Annotated[Positive, Key(on_resume="same")] = 1000
    """Number of steps between validations; each saves a checkpoint. `max_minutes` shortens it for several validations
    in a short run."""
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
    trackers: Annotated[
        list[TrackerName],
        BeforeValidator(_from_tensorboard),
        Key(on_resume="same", has_effect=False, side_output=True),
    ] = []
    """Trackers that show the metrics during training: tensorboard (events in RUN/tensorboard), wandb, trackio, mlflow.
    A tracker that fails never ends the training. See docs/trackers.md."""
    report: Annotated[bool, Key(on_resume="same", has_effect=False, side_output=True)] = False
    """Write RUN/report.html at the end of `mtformer train`, as `mtformer report` does."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if self.average_last > self.keep_last:
            limits = f"average_last {self.average_last} is above keep_last {self.keep_last}"
            raise ValueError(f"{limits}; lower the former or raise the latter")
        if self.batch_tokens == "auto" and self.step_tokens is None:
            raise ValueError(
                "batch_tokens: auto needs step_tokens, the number of tokens per optimizer step; set both, or a "
                "number for batch_tokens"
            )
        if self.step_tokens is not None and self.accumulation_steps != 1:
            raise ValueError("step_tokens sets accumulation_steps; remove one of them")
        if self.max_minutes is not None and self.max_epochs is not None:
            raise ValueError("max_minutes and max_epochs cannot be combined; remove one of them")
        if self.optimizer == "muon" and self.sharded:
            raise ValueError("muon needs whole matrices, which sharded: true splits; use adamw, or set sharded: false")
        return self

    @property
    def micro_batch_tokens(self) -> int:
        """`batch_tokens`, or a small size until one is chosen (see `preflight.choose_batches`)."""
        return self.batch_tokens if self.batch_tokens != "auto" else CPU_BATCH_TOKENS


MAX_HYPOTHESES = 1000
"""Maximum beam size. The decoder cache grows with its square: for 1,000 beams, up to 1 GB per sentence."""
NumHypotheses = Annotated[int, Field(ge=1, le=MAX_HYPOTHESES)]
"""A number of hypotheses per sentence."""
Stopping = Literal["auto", "ended", "estimate", "certain"]
"""When a beam search ends; see `DecodingConfig.early_stopping`."""


IN_EXPORTS = (HUGGINGFACE, ARGOS.ignored)
"""Declaration of a search setting that a Hugging Face export contains. Argos Translate has settings of its own."""
NOT_IN_EXPORTS = (HUGGINGFACE.ignored, ARGOS.ignored)
"""Declaration of a search setting that has no effect on the translations of an export.

These include the settings of sampling: sampling itself is not supported.
"""
IS_RANDOM = Condition("sampling: true or mbr_samples", lambda decoding: decoding.draws)
"""Translations are sampled, including for MBR."""
IS_GREEDY = Condition("beam_size: 1", lambda decoding: decoding.beam_size == 1)
"""Greedy search, which has no stopping rule."""
HAS_BEAMS = Condition("beam_size above 1", lambda decoding: decoding.beam_size > 1)
"""Beam search, in which Hugging Face penalizes log-probabilities, as we do; in greedy search it penalizes logits."""
HAS_SEVERAL_HYPOTHESES = Condition("beam_size above 1 (if sampling, n_best)", lambda decoding: decoding.num_rows > 1)
"""There are several hypotheses to choose from."""


def _is_max_length_first(decoding: "DecodingConfig") -> bool:
    """Return True if `max_length` limits translations before `max_length_ratio` does, even of a single token."""
    return decoding.max_length is not None and decoding.max_length <= decoding.max_length_ratio + 10


MAX_LENGTH_FIRST = Condition("a max_length that it cannot lower", _is_max_length_first)
"""`max_length_ratio` has no effect."""


class DecodingConfig(Section):
    """Search and sampling in `translate`, `eval`, `serve` and validation."""

    on_resume = "same"
    removed = {
        "coverage_penalty": 0.0, "beam_groups": 1, "diversity_penalty": 0.0, "mbr_metric": "chrf",
        "replace_unknowns": False,
    }  # fmt: skip
    renamed = {"batch_tokens": "beam_tokens"}

    beam_size: Annotated[
        NumHypotheses, Key(panel="Search", metavar="N", backends=(CTRANSLATE2,), exports=IN_EXPORTS)
    ] = 5
    """Beam size; 1: greedy search."""
    n_best: Annotated[
        NumHypotheses,
        Key(
            panel="Search",
            metavar="N",
            in_validation=False,
            backends=(CTRANSLATE2,),
            exports=(HUGGINGFACE.only(1), ARGOS.ignored),
        ),
    ] = 1
    """Number of translations per source sentence."""
    length_penalty: Annotated[
        float, Field(ge=0.0, le=10.0), Key(panel="Search", metavar="X", backends=(CTRANSLATE2,), exports=IN_EXPORTS)
    ] = 1.0
    """Exponent alpha in score = log-probability / length^alpha."""
    early_stopping: Annotated[
        Stopping,
        Key(
            panel="Search",
            metavar="RULE",
            in_validation=False,
            keeps_saved=True,
            backends=(CTRANSLATE2.only("auto", "ended", unless=IS_GREEDY),),
            exports=IN_EXPORTS,
        ),
    ] = "auto"
    """Stop when `beam_size` hypotheses are finished (`ended`), no unfinished hypothesis scores higher (`estimate`),
    or none can still win (`certain`). auto: `estimate`, or with CTranslate2, which does not support it, when twice
    `beam_size` hypotheses are finished."""
    max_length_ratio: Annotated[
        float,
        Field(gt=0.0),
        Key(
            panel="Search",
            metavar="RATIO",
            backends=(CTRANSLATE2,),
            exports=(HUGGINGFACE.only(2.0, unless=MAX_LENGTH_FIRST), ARGOS.ignored),
        ),
    ] = 2.0
    """Maximum length in tokens: this ratio x number of source tokens + 10."""
    min_length_ratio: Annotated[
        float,
        Field(ge=0.0),
        Key(panel="Search", metavar="RATIO", backends=(CTRANSLATE2,), exports=(HUGGINGFACE.only(0.0), ARGOS.ignored)),
    ] = 0.0
    """Minimum length in tokens: this ratio x number of source tokens."""
    max_length: Annotated[
        Positive | None, Key(panel="Search", metavar="N", backends=(CTRANSLATE2,), exports=IN_EXPORTS)
    ] = None
    """Maximum number of tokens in any translation."""
    min_length: Annotated[Count, Key(panel="Search", metavar="N", backends=(CTRANSLATE2,), exports=IN_EXPORTS)] = 0
    """Minimum number of tokens in any translation."""
    no_repeat_ngram_size: Annotated[
        Count, Key(panel="Constraints", metavar="N", backends=(CTRANSLATE2,), exports=IN_EXPORTS)
    ] = 0
    """Forbid repeated n-grams of this length; 0: off."""
    repetition_penalty: Annotated[
        float,
        Field(ge=1.0),
        Key(
            panel="Constraints",
            metavar="X",
            backends=(CTRANSLATE2,),
            exports=(HUGGINGFACE.only(1.0, unless=HAS_BEAMS), ARGOS.ignored),
        ),
    ] = 1.0
    """Factor applied to the log-probabilities of tokens already generated; 1: no penalty."""
    sampling: Annotated[
        bool,
        Key(
            panel="Sampling",
            in_validation=False,
            backends=(CTRANSLATE2.only(False),),
            exports=(HUGGINGFACE.only(False), ARGOS.ignored),
        ),
    ] = False
    """Draw translations at random instead of searching."""
    temperature: Annotated[
        float,
        Field(gt=0.0),
        Key(
            panel="Sampling",
            metavar="X",
            in_validation=False,
            only_with=IS_RANDOM,
            backends=(CTRANSLATE2.ignored,),
            exports=NOT_IN_EXPORTS,
        ),
    ] = 1.0
    """Softmax temperature for sampling."""
    top_k: Annotated[
        Count,
        Key(
            panel="Sampling",
            metavar="K",
            in_validation=False,
            only_with=IS_RANDOM,
            backends=(CTRANSLATE2.ignored,),
            exports=NOT_IN_EXPORTS,
        ),
    ] = 0
    """Sample from the K most probable tokens; 0: all."""
    top_p: Annotated[
        float,
        Field(gt=0.0, le=1.0),
        Key(
            panel="Sampling",
            metavar="P",
            in_validation=False,
            only_with=IS_RANDOM,
            backends=(CTRANSLATE2.ignored,),
            exports=NOT_IN_EXPORTS,
        ),
    ] = 1.0
    """Sample from the most probable tokens with total probability P (nucleus sampling)."""
    seed: Annotated[
        Count,
        Key(
            panel="Sampling",
            metavar="N",
            in_validation=False,
            only_with=IS_RANDOM,
            backends=(CTRANSLATE2.ignored,),
            exports=NOT_IN_EXPORTS,
        ),
    ] = 1
    """Sampling seed; results rarely depend on batching, through rounding."""
    mbr_samples: Annotated[
        int,
        Field(ge=0, le=MAX_HYPOTHESES),
        Key(
            panel="Sampling",
            metavar="N",
            in_validation=False,
            backends=(CTRANSLATE2.only(0),),
            exports=(HUGGINGFACE.only(0), ARGOS.ignored),
        ),
    ] = 0
    """Minimum Bayes risk (MBR): draw this many samples and return the one with the highest mean chrF; 0: off."""
    split: Annotated[
        Literal["auto", "always", "never"],
        Key(
            panel="Input and output",
            metavar="WHEN",
            backends=(CTRANSLATE2,),
            exports=(HUGGINGFACE.only("auto", "never"), ARGOS.ignored),
        ),
    ] = "auto"
    """Translate each sentence of a line separately: auto, always or never. See docs/decoding.md."""
    keep: Annotated[
        Literal["numbers"] | None,
        Key(
            panel="Search",
            metavar="NAME",
            in_validation=False,
            only_with=HAS_SEVERAL_HYPOTHESES,
            backends=(CTRANSLATE2,),
            exports=(HUGGINGFACE.only(None), ARGOS.ignored),
        ),
    ] = None
    """numbers: return the first hypothesis that keeps the numbers, URLs and e-mail addresses of the source."""
    beam_tokens: Annotated[
        Positive | None,
        Key(panel="Device and weights", metavar="N", has_effect=False, backends=(CTRANSLATE2,), exports=NOT_IN_EXPORTS),
    ] = None
    """Batch size in tokens: sentences x beam size x length of the longest source; null: 8,192, or 65,536 on CUDA."""
    validation_beam_size: Annotated[
        NumHypotheses, Key(is_option=False, backends=(CTRANSLATE2.ignored,), exports=NOT_IN_EXPORTS)
    ] = 1
    """Beam size for decoding the dev set during training."""

    def for_validation(self) -> "DecodingConfig":
        """Return the settings for validation: `validation_beam_size`, a single translation, no sampling."""
        kept_keys = {key for key in DecodingConfig.model_fields if key_of(DecodingConfig, key).in_validation}
        values = self.model_dump(include=kept_keys)
        values["beam_size"] = self.validation_beam_size
        return DecodingConfig.model_validate(values)

    def output_settings(self) -> dict[str, Any]:
        """Return the settings that affect a translation, as JSON values."""
        included_keys = set()
        for name in DecodingConfig.model_fields:
            key = key_of(DecodingConfig, name)
            if key.has_effect and key.is_option:
                included_keys.add(name)
        return self.model_dump(mode="json", include=included_keys)

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
            limits = f"min_length_ratio {self.min_length_ratio} is above max_length_ratio {self.max_length_ratio}"
            raise ValueError(f"{limits}; lower the former or raise the latter")
        if self.max_length is not None and self.min_length > self.max_length:
            limits = f"min_length {self.min_length} is above max_length {self.max_length}"
            raise ValueError(f"{limits}; lower the former or raise the latter")
        if self.n_best > self.num_rows:
            key = "mbr_samples" if self.mbr_samples else "beam_size"
            raise ValueError(f"n_best {self.n_best} is above {key} {self.num_rows}; set {key} to at least n_best")
        return self


class EvaluationConfig(Section):
    """sacreBLEU settings; scores are computed on detokenized text."""

    on_resume = "same"

    bleu_tokenizer: Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"] = "auto"
    """sacreBLEU tokenizer for BLEU. auto: zh for Chinese, ja-mecab for Japanese (extra `ja`), ko-mecab for Korean
    (extra `ko`), char for Japanese and Korean if the extra is not installed, char for other text in scripts without
    spaces between words, such as Thai, Burmese and Tibetan (where TER, which counts words between spaces, says little),
    otherwise 13a. The script is that in the language code (nan_Latn), else that of the references, which also shows
    Chinese, Japanese or Korean if the language is unknown."""
    lowercase: bool = False
    """Ignore case when computing scores."""


DEV_METRICS = ("loss", "perplexity", "bleu", "chrf")
"""Metrics of a validation, over all dev sets or on one of them."""


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
        has_tokenizer = bool(self.tokenizer.src_model or self.tokenizer.tgt_model)
        if self.training.init_from is not None and has_tokenizer:
            raise ValueError("training.init_from provides the tokenizer; remove tokenizer.src_model and tgt_model")
        self._check_best_metric()
        if self.data.both_directions and not self.tokenizer.joint:
            raise ValueError(
                "data.both_directions needs tokenizer.joint: true; set it, or set data.both_directions: false"
            )
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings 'all' needs tokenizer.joint: true; use 'output' or 'none'")

        has_language_tag = self.data.language_tags == "source"
        has_corpus_tag = any(corpus.tag for corpus in self.data.corpora.values())
        max_tokens = self.data.filters.max_tokens
        if max_tokens + has_language_tag + has_corpus_tag >= self.model.max_positions:
            lengths = f"data.filters.max_tokens {max_tokens} (plus eos and tags)"
            limit = f"model.max_positions {self.model.max_positions}"
            raise ValueError(f"{lengths} exceeds {limit}; lower the former or raise the latter")
        return self

    def _check_best_metric(self) -> None:
        """Raise ValueError if no validation computes `training.best_metric`."""
        best_metric = self.training.best_metric
        dev_names = self.data.dev_names
        first_word, _, _ = best_metric.partition(" ")
        if not self.data.sources and first_word in DEV_METRICS:
            return  # a bundle, which lists no data; any name of a dev set is valid

        known_metrics = [*DEV_METRICS]
        for name in dev_names:
            known_metrics += [f"{metric} {name}" for metric in DEV_METRICS]
        if best_metric in known_metrics:
            return

        allowed = f"one of {', '.join(DEV_METRICS)}"
        if dev_names:
            allowed += f", optionally followed by a dev set ({', '.join(dev_names)})"
        suggestion = nearest(best_metric, known_metrics)
        raise ValueError(f"training.best_metric must be {allowed}, not '{best_metric}'{suggestion}")
