"""Reranking: choosing among the n best translations of a line with an external metric that needs no references."""

from collections.abc import Sequence
from dataclasses import replace

from mtformer.decoding.lines.translation import Translation
from mtformer.errors import ConfigError
from mtformer.evaluation.external import PLACE, ExternalMetric, find_metrics, score_lines


def find_reranker(text: str) -> ExternalMetric:
    """Return the metric that an option names; raise ConfigError as `find_metrics`, or if it needs references."""
    [metric] = find_metrics([text])
    if "ref" in PLACE.findall(metric.command):
        raise ConfigError(
            f"metric {metric.name}: needs references ({{ref}}), which a translation does not have; choose a metric "
            "that estimates quality from {src} and {hyp}"
        )
    return metric


def rerank(metric: ExternalMetric, sources: Sequence[str], translations: Sequence[Translation]) -> list[Translation]:
    """Return the translations with their alternatives in the order of the metric, best first.

    Translations with equal scores keep their order. Lines with a single translation are not scored.

    Args:
        metric: the metric.
        sources: the lines.
        translations: translation of each line, with alternatives.

    Raise DataError if the metric fails, see `external.run_metric`.
    """
    hypotheses = [(translation, *translation.alternatives) for translation in translations]
    scored_sources: list[str] = []
    scored_texts: list[str] = []
    for source, hypotheses_of_line in zip(sources, hypotheses, strict=True):
        if len(hypotheses_of_line) > 1:
            scored_sources += [source] * len(hypotheses_of_line)
            scored_texts += [hypothesis.text for hypothesis in hypotheses_of_line]
    if not scored_texts:
        return list(translations)

    scores = iter(score_lines(metric, {"src": scored_sources, "hyp": scored_texts}))
    sign = 1 if metric.lower_is_better else -1
    reranked = []
    for hypotheses_of_line in hypotheses:
        if len(hypotheses_of_line) > 1:
            hypotheses_of_line = _sorted(hypotheses_of_line, [sign * next(scores) for _ in hypotheses_of_line])
        best, *alternatives = hypotheses_of_line
        reranked.append(replace(best, alternatives=tuple(alternatives)))
    return reranked


def _sorted(hypotheses: tuple[Translation, ...], costs: Sequence[float]) -> tuple[Translation, ...]:
    """Return the translations by cost, the lowest first."""
    order = sorted(range(len(hypotheses)), key=costs.__getitem__)
    return tuple(hypotheses[index] for index in order)
