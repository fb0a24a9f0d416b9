"""Additions to uvicorn: a time limit for request heads, and a helpful message for too many open files."""

import asyncio
import errno
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10
"""Maximum time to wait for the head of the next request on a connection."""


class Protocol(H11Protocol):
    """A connection that is closed if a request head is not complete in time; uvicorn waits without a limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._expect_head()
        super().on_response_complete()

    def _expect_head(self) -> None:
        self.loop.call_later(HEAD_SECONDS, self._close_if_idle, self.cycle)

    def _close_if_idle(self, before: RequestResponseCycle | None) -> None:
        if self.cycle is before:  # no request has started since then
            self.timeout_keep_alive_handler()


def explain_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception outside of requests as asyncio does, but explain what to do about too many open files."""
    if getattr(context.get("exception"), "errno", None) == errno.EMFILE:
        context["message"] = "too many open files, so new connections wait; raise the limit with `ulimit -n`"
    # One second after such an error, asyncio accepts connections again, even if the server has stopped.
    if "_start_serving" not in context["message"]:
        loop.default_exception_handler(context)
