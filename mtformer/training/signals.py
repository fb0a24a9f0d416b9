"""Record signals for a loop that checks them between steps."""

import os
import signal
from contextlib import AbstractContextManager
from types import FrameType


class StopSignal(AbstractContextManager["StopSignal"]):
    """Context that records the first SIGINT or SIGTERM in `received`; a second SIGINT interrupts immediately.

    SIGHUP (a closed terminal) counts as SIGTERM, unless it is ignored (`nohup`).
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignal":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if os.name != "nt" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # values returned by signal.signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
