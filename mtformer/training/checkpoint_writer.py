"""Write checkpoints beside the training: their values are copied to the CPU, and a thread writes them.

Writing, syncing and hashing the checkpoint of a large model takes seconds, in which a GPU would wait. On a CPU, writing
stays in the training thread: its cores would be shared, and a copy of the optimizer state would need as much memory
again as the state itself.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any

from torch import Tensor

from mtformer.config.schema import TrainingConfig
from mtformer.errors import InterruptedRunError, log
from mtformer.run_dir import RunDir
from mtformer.training.checkpoint import Checkpoint, log_checksums, prune, save_checkpoint

BACKGROUND_DEVICES = ("cuda",)
"""Types of the devices that train while a thread writes a checkpoint."""


class CheckpointWriter(AbstractContextManager["CheckpointWriter"]):
    """Writes the checkpoints of a run sequentially, and deletes old ones.

    At its end, the context waits for the last checkpoint, unless an exception such as KeyboardInterrupt ends the
    process at once, which has the same effect on files as a killed process.

    Args:
        run: the run directory.
        in_background: write in a thread.
    """

    def __init__(self, run: RunDir, in_background: bool) -> None:
        self.run = run
        self.in_background = in_background
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, InterruptedRunError):  # which promises that the checkpoint is saved
            self.finish()
        elif isinstance(error, Exception):
            self._wait()
            if self._error is not None:
                log.warning("%s", self._error)

    def write(self, checkpoint: Checkpoint, config: TrainingConfig) -> None:
        """Save a checkpoint and delete old ones; in the background, this first waits for the previous checkpoint.

        Raise CheckpointError if this or, in the background, the previous checkpoint cannot be saved.
        """
        self.finish()
        if not self.in_background:
            save_checkpoint(self.run, checkpoint)
            prune(self.run, config)
            return

        # Meanwhile, training appends to the log files and changes the tensors.
        logs = log_checksums(self.run, checkpoint.step)
        copied = replace(checkpoint, trainer_state=_on_cpu(checkpoint.trainer_state))

        def save() -> None:
            save_checkpoint(self.run, copied, logs)
            prune(self.run, config)

        # A daemon does not delay the end of a process that is interrupted at once.
        self._thread = threading.Thread(target=self._run, args=(save,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be saved in the background, if there is one; do not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint is saved; raise CheckpointError if that failed."""
        self._wait()
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, save: Callable[[], None]) -> None:
        try:
            save()
        except Exception as error:  # raised by the training thread
            self._error = error


def _on_cpu(value: Any) -> Any:
    """Return a copy of a state, which consists of dicts, lists and plain values, with copies of all tensors."""
    if isinstance(value, Tensor):
        copied: Tensor = value.detach().to("cpu", copy=True)
        return copied
    if isinstance(value, dict):
        return {name: _on_cpu(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_on_cpu(entry) for entry in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_on_cpu, value))
    return value
