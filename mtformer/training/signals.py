"""Record signals for a loop that checks them between steps."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType


class StopSignal(ExitStack):
    """Context that records the first SIGINT or SIGTERM in `received`; a second SIGINT interrupts immediately.

    SIGHUP (a closed terminal) counts as SIGTERM, unless it is ignored (`nohup`). `on_stop` is called after the first.
    Python handles signals in the main thread only, so another thread cannot be stopped by them.
    """

    def __init__(self, on_stop: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.received: signal.Signals | None = None
        self._on_stop = on_stop

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is not threading.main_thread():
            return self

        numbers = [signal.SIGINT, signal.SIGTERM]
        if os.name != "nt" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            earlier_handler = signal.signal(number, self._on_signal)
            self.callback(signal.signal, number, earlier_handler)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_first = self.received is None
        self.received = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if is_first:
            self._on_stop()
