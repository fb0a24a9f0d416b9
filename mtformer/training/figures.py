"""Figures of a training in metrics.jsonl, and their form in progress bar, report and plots."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingFigure:
    """A figure of train or dev lines."""

    key: str
    label: str
    """Name on an axis."""
    on_dev: bool = False
    """Dev lines have it."""
    is_timing: bool = False
    """It depends on clock and machine, and differs from run to run."""
    bar: str | None = None
    """Format in the progress bar."""
    is_exceptional: bool = False
    """The progress bar shows it only above 0."""
    chart: str | None = None
    """Caption of its chart in a report."""
    is_log: bool = False
    """The chart has a logarithmic axis."""


FIGURES = (
    TrainingFigure("loss", "loss", on_dev=True, bar="loss {:.3f}", chart="Loss per target token, with label smoothing"),
    TrainingFigure("nll", "negative log-likelihood"),
    TrainingFigure("perplexity", "perplexity", on_dev=True, chart="Perplexity", is_log=True),
    TrainingFigure("bleu", "BLEU", on_dev=True, chart="BLEU on dev"),
    TrainingFigure("chrf", "chrF2++", on_dev=True, chart="chrF2++ on dev"),
    TrainingFigure("learning_rate", "learning rate", bar="lr {:.2e}", chart="Learning rate"),
    TrainingFigure("grad_norm", "gradient norm", bar="grad {:.2f}", chart="Gradient norm, before clipping"),
    TrainingFigure(
        "tokens_per_second",
        "tokens per second",
        is_timing=True,
        bar="{:,.0f} tokens/s",
        chart="Tokens per second, source and target",
    ),
    TrainingFigure("padding", "padding"),
    TrainingFigure("waiting_for_data", "waiting for data", is_timing=True),
    TrainingFigure("skipped_steps", "skipped steps", bar="{:.0f} steps skipped", is_exceptional=True),
    TrainingFigure("split_batches", "split batches"),
    TrainingFigure("seconds_per_step", "seconds per step", is_timing=True),
    TrainingFigure("memory_gb", "memory (GB)", is_timing=True, chart="Memory in GB"),
)
"""In the order of charts and of the progress bar. Train lines have neither perplexity, which `nll` gives, nor scores;
`pairs NAME` counts the pairs of a corpus where there are several."""
BY_KEY = {figure.key: figure for figure in FIGURES}
TIMINGS = frozenset(figure.key for figure in FIGURES if figure.is_timing)


def bar_text(values: Mapping[str, float]) -> str:
    """Return the text of the progress bar for the figures of a log line."""
    figures = (figure for figure in FIGURES if figure.bar and (values[figure.key] or not figure.is_exceptional))
    return ", ".join(str(figure.bar).format(values[figure.key]) for figure in figures)


def axis_label(metric: str) -> str:
    """Return the label of a metric such as `bleu` (of dev) or `train.loss`."""
    figure = BY_KEY.get(metric.removeprefix("train."))
    if figure is None:
        return metric
    if not figure.on_dev:
        return figure.label
    return f"{'train' if metric.startswith('train.') else 'dev'} {figure.label}"
