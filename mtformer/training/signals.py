"""Record signals for a loop that checks them between steps."""

import os
import signal
from contextlib import ExitStack
from types import FrameType


class StopSignal(ExitStack):
    """Context that records the first SIGINT or SIGTERM in `received`; a second SIGINT interrupts immediately.

    SIGHUP (a closed terminal) counts as SIGTERM, unless it is ignored (`nohup`).
    """

    received: signal.Signals | None = None

    def __enter__(self) -> "StopSignal":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if os.name != "nt" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self.callback(signal.signal, number, signal.signal(number, self._on_signal))
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
