"""`mtformer serve`: a web page and an HTTP API for a model."""

import contextlib
import os
from typing import Annotated

import typer

from mtformer.cli.app import DEBUG
from mtformer.cli.decoding_options import Load
from mtformer.cli.help import INPUT_OUTPUT
from mtformer.cli.options import EnsembleArgument, optional
from mtformer.errors import ConfigError, log, require_extra

PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_fastapi_instrumentator")
"""Packages of the extra `serve`."""
KEY_HELP = (
    "api_key that requests must send (or set MTFORMER_API_KEY); required if other machines can reach the address of "
    "--host."
)
"""Help of --api-key."""


def serve(
    runs: EnsembleArgument,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0: all interfaces.", metavar="ADDRESS", rich_help_panel=INPUT_OUTPUT
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0: any free port.", metavar="N", rich_help_panel=INPUT_OUTPUT
        ),
    ] = 8000,
    api_key: Annotated[
        str | None, optional(KEY_HELP, metavar="KEY", panel=INPUT_OUTPUT, envvar="MTFORMER_API_KEY")
    ] = None,
    max_characters: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of characters per request.", metavar="N", rich_help_panel=INPUT_OUTPUT
        ),
    ] = 5000,
    queue_size: Annotated[
        int,
        typer.Option(
            "--queue",
            min=1,
            help="Maximum number of waiting requests; others are refused with status 503.",
            metavar="N",
            rich_help_panel=INPUT_OUTPUT,
        ),
    ] = 200,
    *,
    load: Load,
) -> None:
    """Stop the server with Ctrl-C.

    Decoding options default to the values in the run's config; see docs/decoding.md.
    """
    require_extra("`mtformer serve`", "serve", *PACKAGES)
    from mtformer.serving.server import is_local, listen, make_server, url

    with listen(host, port) as sock:
        only_this_machine = is_local(sock)
        if not api_key and not only_this_machine:
            raise ConfigError(
                f"--host {host} is reachable from other machines; give --api-key or set MTFORMER_API_KEY, or remove "
                "--host"
            )

        from mtformer.serving.app import LOCAL_HOSTS, create_app
        from mtformer.serving.responsiveness import keep_responsive

        app = create_app(
            load(runs, None),
            title=", ".join(os.path.basename(os.path.realpath(run)) for run in runs),
            max_characters=max_characters,
            queue_size=queue_size,
            api_key=api_key or None,
            hosts=LOCAL_HOSTS | {host.lower()} if only_this_machine else None,
        )
        log.info("%s serves %s; press Ctrl-C to stop", url(sock), ", ".join(map(str, runs)))
        keep_responsive()
        is_verbose = os.environ.get(DEBUG, "0") not in ("", "0")
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the regular way to stop a server
            make_server(app, is_verbose).run(sockets=[sock])
