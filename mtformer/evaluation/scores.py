"""BLEU, chrF2++ and TER on detokenized text, with their signatures, computed by sacreBLEU (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from mtformer.config.languages import UNSPACED_SCRIPTS, base_code, has_spaces, script_code
from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError, log
from mtformer.text.style import TOKENIZED, StyleCounts, signs_of
from mtformer.text.words import lacks_spaces, likely_language

if TYPE_CHECKING:  # importing sacreBLEU takes a second
    from sacrebleu.metrics.base import Metric

MetricName = Literal["bleu", "chrf", "ter"]
METRICS: tuple[MetricName, ...] = ("bleu", "chrf", "ter")
BY_LANGUAGE = {
    **dict.fromkeys(("zh", "lzh", "wuu", "yue"), "zh"),
    **{"ja": "ja-mecab", "ko": "ko-mecab"},
}
"""BLEU tokenizers that `auto` selects for languages with a tokenizer of their own, in their usual scripts."""
OWN_SCRIPTS = frozenset((*UNSPACED_SCRIPTS, "", "hang", "kore"))
"""Script codes with which these tokenizers are used; not in zh_Latn."""
UNSPACED = ("zh", "ja-mecab", "ko-mecab", "char")
"""BLEU tokenizers for text without spaces between words."""
TOKENIZED_SHARE = 0.2
"""Share of lines with signs of tokenization above which a corpus counts as tokenized."""


@dataclass(frozen=True)
class Score:
    """A corpus score: its name, the label used in papers, and its signature, which is sacreBLEU's for its metrics."""

    name: str
    """A `MetricName`, or the name of an external metric."""
    label: str
    value: float
    signature: str

    @property
    def text(self) -> str:
        """The value as it is shown."""
        return f"{self.value:.{num_decimals(self.name)}f}"


def num_decimals(metric: str) -> int:
    """Return the number of decimals of a metric's scores; external ones may be between 0 and 1."""
    return 2 if metric in METRICS else 4


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    config: EvaluationConfig,
    metrics: Sequence[MetricName] = METRICS,
    more_references: Sequence[Sequence[str]] = (),
) -> list[Score]:
    """Score a corpus with several metrics.

    Args:
        hypotheses: detokenized translations.
        references: the reference of each line.
        config: settings of the metrics; `for_language` adapts them to a language. The tokenizer `auto` follows the
            references.
        metrics: names of the metrics.
        more_references: further references of each line, in one list each.

    Returns:
        One `Score` per metric, in the order of `metrics`.

    Raises:
        ConfigError: if the BLEU tokenizer is not available.
    """
    streams = [list(stream) for stream in (references, *more_references)]
    scores = []
    for name in metrics:
        metric = make_metric(name, config, references)
        result = metric.corpus_score(list(hypotheses), streams)
        signature = metric.get_signature().format()
        scores.append(Score(name, result.name, result.score, signature))
    return scores


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[float]:
    """Return the chrF2++ score of each sentence.

    Args:
        hypotheses: the translations.
        references: one reference for each translation.
        lowercase: ignore case.
    """
    metric = make_metric("chrf", EvaluationConfig(lowercase=lowercase))
    scores = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        result = metric.sentence_score(hypothesis, [reference])
        scores.append(result.score)
    return scores


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Return True if lines look tokenized.

    A fifth of the lines with a space before the final full stop (not before a danda, which often has one), or with
    markers of Moses or subword-nmt, is enough, so that a partly tokenized test set is found; other signs are those of
    `mtformer.text.style`.
    """
    signs = ("@-@", "@@ ", "&apos;", "&quot;")

    def is_tokenized(line: str) -> bool:
        return line.endswith((" .", " 。")) or any(sign in line for sign in signs)

    num_tokenized = sum(map(is_tokenized, lines))
    if num_tokenized > TOKENIZED_SHARE * len(lines):
        return True
    return not signs_of(StyleCounts.of_lines(lines)).keys().isdisjoint(TOKENIZED)


def warn_of_tokenized_references(name: str, references: Sequence[Sequence[str]], config: EvaluationConfig) -> bool:
    """Log a warning if references look tokenized, which increases BLEU, unless BLEU of tokens is chosen.

    Args:
        name: name of the test set.
        references: one or more lists of references.
        config: settings of the metrics.

    Returns:
        True if the references look tokenized.
    """
    is_tokenized = any(map(looks_tokenized, references))
    if is_tokenized and config.bleu_tokenizer != "none":
        log.warning(
            "%s: the references look tokenized; their scores are not comparable to published ones; use the original "
            "text, or evaluation.bleu_tokenizer: none to score tokens on purpose",
            name,
        )
    return is_tokenized


def warn_of_tokenized_translations(name: str, hypotheses: Sequence[str]) -> None:
    """Log a warning if translations look tokenized; call it if their references do not.

    Args:
        name: name of the test set or the file.
        hypotheses: the translations.
    """
    if looks_tokenized(hypotheses):
        log.warning(
            "%s: the translations look tokenized and the references do not, so the scores are too low; detokenize the "
            "translations, or train on text that is not tokenized",
            name,
        )


def for_language(config: EvaluationConfig, tgt_lang: str | None, references: Sequence[str] = ()) -> EvaluationConfig:
    """Return the settings for a target language: `auto` becomes its tokenizer, or `char` if that is unavailable.

    Args:
        config: settings of the metrics.
        tgt_lang: target language code; None if it is unknown, and the references show it.
        references: text in this language, whose script decides if the code does not name one.
    """
    if config.bleu_tokenizer != "auto":
        return config
    language = tgt_lang or likely_language(references)
    tokenizer = _automatic(language, references)
    return config.model_copy(update={"bleu_tokenizer": _runnable(tokenizer)})


def _automatic(language: str, references: Sequence[str]) -> str:
    """Return the BLEU tokenizer of a language: its own, `char` for scripts without spaces between words, or 13a."""
    script = script_code(language)
    base = base_code(language)
    if base in BY_LANGUAGE and script in OWN_SCRIPTS:
        return BY_LANGUAGE[base]

    is_unspaced = None if script else lacks_spaces(references)
    if is_unspaced is None:
        is_unspaced = language != "" and not has_spaces(language)
    return "char" if is_unspaced else "13a"


@cache  # so that the warning appears once
def _runnable(tokenizer: str) -> str:
    """Return the name of a BLEU tokenizer, or `char` if its package is not installed."""
    if not tokenizer.endswith("-mecab"):
        return tokenizer
    try:
        make_metric("bleu", EvaluationConfig.model_validate({"bleu_tokenizer": tokenizer}))
    except ConfigError:
        log.warning(
            "BLEU is computed on characters (tok:char), because sacreBLEU's tokenizer %s is not available; "
            "to install it: pip install 'mtformer[%s]'", tokenizer, tokenizer.removesuffix("-mecab"),
        )  # fmt: skip
        return "char"
    return tokenizer


def make_metric(name: MetricName, config: EvaluationConfig, references: Sequence[str] = ()) -> "Metric":
    """Return sacreBLEU's metric with these settings; raise ConfigError if the BLEU tokenizer is not available.

    Args:
        name: name of the metric.
        config: settings of the metrics.
        references: text in the target language, whose script decides about the BLEU tokenizer `auto`.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return CHRF(word_order=2, lowercase=config.lowercase)
    config = for_language(config, None, references)
    if name == "ter":
        # Case is always ignored, as in sacreBLEU and the literature, regardless of `lowercase`.
        unspaced = config.bleu_tokenizer in UNSPACED
        return TER(normalized=unspaced, asian_support=unspaced)
    try:
        # `force` leaves out sacreBLEU's own warning of tokenized text; ours is `warn_of_tokenized_references`.
        return BLEU(lowercase=config.lowercase, tokenize=config.bleu_tokenizer, force=True)
    except (ImportError, RuntimeError, OSError, SystemExit, AssertionError) as error:
        # ja-mecab and ko-mecab require packages and assert that a dictionary exists; flores200 downloads a model.
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"evaluation.bleu_tokenizer '{config.bleu_tokenizer}' is not available: {reason}; install what it needs, "
            "or choose another"
        ) from error
