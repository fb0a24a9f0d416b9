"""The server: an address of this machine, and what runs there until it is told to end."""

import errno
import importlib
import ipaddress
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from mtformer.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

GRACE_SECONDS = 3
"""For requests in progress when the server ends."""


def require_packages() -> None:
    """Raises ConfigError when the packages of the extra are not there."""
    try:
        for package in ("fastapi", "uvicorn"):
            importlib.import_module(package)
    except ImportError as error:
        raise ConfigError("`mtformer serve` needs FastAPI and uvicorn: pip install 'mtformer[serve]'") from error


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, so that the address is this process's from now on.

    Args:
        host: a name or an address of this machine.
        port: 0: one that is free.

    Raises:
        ConfigError: when the address cannot be had.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"--host {host}: not the name or address of a machine; 127.0.0.1 is this one") from None
    family, kind, _, _, address = addresses[0]
    found = socket.socket(family, kind)
    try:
        if os.name != "nt":  # where it would let two servers share a port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        raise ConfigError(_why(error, host, port)) from None
    return found


def is_local(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(sock.getsockname()[0].split("%")[0]).is_loopback


def url(sock: socket.socket) -> str:
    """Where the page is."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Any, tells_all: bool) -> "uvicorn.Server":
    """What serves an application on a socket from `listen` until the process is told to end.

    SIGINT then becomes a KeyboardInterrupt.

    Args:
        app: an ASGI application.
        tells_all: whether uvicorn logs each request, and what goes wrong.
    """
    import uvicorn

    if tells_all:
        logging.getLogger("uvicorn").handlers = logging.getLogger("mtformer").handlers
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="info" if tells_all else "critical",
        access_log=tells_all,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another with --port, or 0 for one that is free"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} may not be taken by this user; choose one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: not an address of this machine"
    return f"{host} port {port}: {error.strerror}"
