"""Which requests are let in: not those that a page of another site makes the user's browser send."""

from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Refuses requests by their Origin, and where it is told the names of this server, by their Host.

    A browser names the site of the page in Origin; without the check any site could have texts translated here. A name
    of another site that resolves to this machine (DNS rebinding) shows in Host.

    Args:
        app: what answers the others.
        hosts: names of this server, without ports; None: any.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": problem}, 403)(scope, receive, send)

    def _problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and _host_name(f"//{host}") not in self.hosts:
            return "the Host of the request is not this machine; open the address that the server printed"
        if origin is not None and origin.partition("://")[2] != host:
            return "the request comes from a page of another site; this server answers its own page only"
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as brackets that do not close
        return None
