"""HTTP server: a listening socket on this machine, and uvicorn with a time limit for request heads."""

import asyncio
import errno
import ipaddress
import logging
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mtformer.errors import ConfigError

GRACE_SECONDS = 10
"""Time that requests in progress get when the server shuts down."""
MAX_HEAD = 1 << 17
"""Maximum number of bytes of a request head: enough for 10,000 characters in a query string."""
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


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket (port 0: any free port); raise ConfigError if the address is not available."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"--host {host}: unknown host name or address; 127.0.0.1 is this machine") from None

    family, _, _, _, address = addresses[0]
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    except OSError as error:
        raise ConfigError(_explain_listen_error(error, host, port)) from None


def _explain_listen_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another with --port, or 0 for any free port"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} requires administrator rights; choose port 1024 or higher with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: not an address of this machine; 127.0.0.1 is this machine, 0.0.0.0 all its addresses"
    return f"{host} port {port}: {error.strerror}; choose others with --host and --port"


def is_local(sock: socket.socket) -> bool:
    """Return True if only this machine can reach the socket."""
    address, *_ = sock.getsockname()
    without_scope, *_ = address.split("%")
    return ipaddress.ip_address(without_scope).is_loopback


def url(sock: socket.socket) -> str:
    """Return the address of the page."""
    host, port, *_ = sock.getsockname()
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


def make_server(app: Any, is_verbose: bool) -> uvicorn.Server:
    """Return a server, which runs until a signal stops it; SIGINT raises KeyboardInterrupt.

    Args:
        app: the ASGI application.
        is_verbose: log each request and the errors of uvicorn.
    """
    if is_verbose:
        logging.getLogger("uvicorn").handlers = logging.getLogger("mtformer").handlers
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # logs a warning for each malformed form
    config = uvicorn.Config(
        app,
        http=Protocol,
        h11_max_incomplete_event_size=MAX_HEAD,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="info" if is_verbose else "critical",
        access_log=is_verbose,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)
