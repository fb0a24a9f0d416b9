"""HTTP server: a listening socket on this machine, and uvicorn."""

import errno
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Any

from mtformer.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

GRACE_SECONDS = 10
"""Time that requests in progress get when the server shuts down."""
MAX_HEAD = 1 << 17
"""Maximum number of bytes of a request head: enough for 10,000 characters in a query string."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, which reserves the address for this process.

    Args:
        host: a name or an address of this machine.
        port: port number; 0: any free port.

    Raises:
        ConfigError: if the address is not available.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"--host {host}: unknown host name or address; 127.0.0.1 is this machine") from None
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    except OSError as error:
        raise ConfigError(_describe(error, host, port)) from None


def is_local(sock: socket.socket) -> bool:
    """Return True if only this machine can reach the socket."""
    return ipaddress.ip_address(sock.getsockname()[0].split("%")[0]).is_loopback


def url(sock: socket.socket) -> str:
    """Return the address of the page."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Any, is_verbose: bool) -> "uvicorn.Server":
    """Return a server for an ASGI application. It runs until a signal stops it; SIGINT raises KeyboardInterrupt.

    Args:
        app: the application.
        is_verbose: log each request, and errors of uvicorn.
    """
    import uvicorn

    from mtformer.serving.protocol import Protocol

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


def _describe(error: OSError, host: str, port: int) -> str:
    known = {
        errno.EADDRINUSE: f"port {port} of {host} is in use; choose another with --port, or 0 for any free port",
        errno.EACCES: f"port {port} of {host} requires administrator rights; choose port 1024 or higher with --port",
        errno.EADDRNOTAVAIL: f"--host {host}: not an address of this machine",
    }
    return known.get(error.errno or 0, f"{host} port {port}: {error.strerror}")
