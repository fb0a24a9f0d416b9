"""Values recorded in metrics.jsonl during training, and how the progress bar, reports and plots show them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True)
class TrainingFigure:
    """A value in train or dev records, and how it is shown."""

    key: str
    on_dev: bool = False
    """True if dev records also contain it."""
    is_timing: bool = False
    """True if it depends on timing and hardware, and therefore differs between repetitions of a run."""
    bar: str | None = None
    """Format in the progress bar; None: not shown there."""
    is_exceptional: bool = False
    """True if the progress bar and reports show it only if it is above 0."""
    chart: str | None = None
    """Caption of its chart in a report; None: no chart."""
    unit: str = ""
    """Label of the vertical axis of its chart."""
    has_time_chart: bool = False
    """True if the report has another chart of it with the training time as the horizontal axis."""
    is_log: bool = False
    """True if the chart has a logarithmic axis."""
    summary: tuple[str, Callable[[Sequence[float]], float], str] | None = None
    """Its row in the speed section of a report: label, function of the values of a run, and format; None: no row."""


FIGURES = (
    TrainingFigure(
        "loss",
        on_dev=True,
        bar="loss {:.3f}",
        chart="Loss, with label smoothing",
        unit="nats per target token",
        has_time_chart=True,
    ),
    TrainingFigure("nll"),
    TrainingFigure(
        "perplexity",
        on_dev=True,
        chart="Perplexity, without label smoothing",
        unit="perplexity per target token",
        is_log=True,
    ),
    TrainingFigure("bleu", on_dev=True, chart="BLEU on dev", unit="BLEU, 0 to 100", has_time_chart=True),
    TrainingFigure("chrf", on_dev=True, chart="chrF2++ on dev", unit="chrF2++, 0 to 100"),
    TrainingFigure("learning_rate", bar="lr {:.2e}", chart="Learning rate", unit="learning rate"),
    TrainingFigure("grad_norm", bar="grad {:.2f}", chart="Gradient norm, before clipping", unit="L2 norm"),
    TrainingFigure(
        "tokens_per_second",
        is_timing=True,
        bar="{:,.0f} tokens/s",
        chart="Training speed",
        unit="source and target tokens per second",
        summary=("tokens per second, source and target, median", median, "{:,.0f}"),
    ),
    TrainingFigure("waiting_for_data", is_timing=True, summary=("waiting for data, mean", fmean, "{:.2%}")),
    TrainingFigure("padding", summary=("padding, mean", fmean, "{:.2%}")),
    TrainingFigure("seconds_per_step", is_timing=True),
    TrainingFigure("seconds_left", is_timing=True),
    TrainingFigure(
        "memory_gb", is_timing=True, chart="Highest memory so far", unit="GB", summary=("peak memory", max, "{:.2f} GB")
    ),
    TrainingFigure(
        "skipped_steps", bar="{:.0f} steps skipped", is_exceptional=True, summary=("skipped steps", sum, "{:,.0f}")
    ),
    TrainingFigure(
        "split_batches", is_exceptional=True, summary=("batches split in two to fit in memory", sum, "{:,.0f}")
    ),
)
"""Values in the order of charts, summaries and the progress bar. Train records have `nll` instead of perplexity and no
scores; with several corpora, they also have `pairs NAME`, the number of pairs from each."""
TIMINGS = frozenset(figure.key for figure in FIGURES if figure.is_timing)
"""Keys of the values that depend on timing and hardware."""


def bar_texts(values: Mapping[str, float]) -> dict[str, str]:
    """Return the text that the progress bar shows for each value of a log line, by key."""
    texts = {}
    for figure in FIGURES:
        if figure.bar is None:
            continue
        value = values[figure.key]
        if value or not figure.is_exceptional:
            texts[figure.key] = figure.bar.format(value)
    return texts
