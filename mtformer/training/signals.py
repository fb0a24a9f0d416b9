"""Ctrl-C and SIGTERM as a flag that a loop reads between two steps."""

import signal
from contextlib import AbstractContextManager
from types import FrameType


class StopSignal(AbstractContextManager["StopSignal"]):
    """While active, the first SIGINT or SIGTERM is kept in `received`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself returned

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
