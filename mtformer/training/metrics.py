"""Log metrics of a run to metrics.jsonl and TensorBoard."""

from contextlib import ExitStack
from typing import Any

from mtformer.config.schema import Config
from mtformer.run_dir import RunDir
from mtformer.training.history import append_record


class Metrics(ExitStack):
    """Context manager that logs to metrics.jsonl (one JSON object per line), and to TensorBoard if enabled.

    In processes other than the main one, nothing is written. Raise ConfigError if TensorBoard is not installed.
    """

    def __init__(self, run: RunDir, config: Config, is_main: bool) -> None:
        super().__init__()
        self.path = run.metrics
        self.is_main = is_main
        self.tensorboard: Any = None
        if is_main and config.training.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = self.enter_context(SummaryWriter(str(run.tensorboard)))

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record of kind train, dev, plan or resume; raise CheckpointError if it cannot be written."""
        if not self.is_main:
            return
        append_record(self.path, kind, step, **values)
        if self.tensorboard is None:
            return
        for name, value in values.items():
            if isinstance(value, int | float):
                self.tensorboard.add_scalar(f"{kind}/{name}", value, step)
