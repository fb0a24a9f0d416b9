"""`mtformer serve`: a page and an API on this machine."""

import contextlib
import logging
import os
from typing import Annotated, Any

import typer

from mtformer.cli.options import BackendOption, CheckpointsOption, DeviceOption, EnsembleArgument, PrecisionOption
from mtformer.errors import ConfigError, require_extra

log = logging.getLogger("mtformer")
PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_fastapi_instrumentator")
DEBUG = "MTFORMER_DEBUG"
KEY_HELP = "Value of api_key in requests; needed with a --host that other machines can reach."


def serve(
    runs: EnsembleArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    api_key: Annotated[str | None, typer.Option(help=KEY_HELP, envvar="MTFORMER_API_KEY", show_default=False)] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Longest text of a request.")] = 5000,
    queue_size: Annotated[
        int, typer.Option("--queue", min=1, help="Requests that may wait; further ones get status 503.")
    ] = 200,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    backend: BackendOption = None,
    checkpoint: CheckpointsOption = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Serve a model: a page to translate on, and an API in the form of LibreTranslate's.

    Ctrl-C ends it, with exit code 0.
    """
    from mtformer.serving.server import is_local, listen, make_server, url

    require_extra("`mtformer serve`", "serve", *PACKAGES)
    with listen(host, port) as sock:
        if not api_key and not is_local(sock):
            raise ConfigError(
                f"--host {host} can be reached from other machines; give a key with --api-key or MTFORMER_API_KEY, "
                "or leave --host out"
            )
        from mtformer.decoding.translator import Translator
        from mtformer.serving.app import LOCAL_HOSTS, create_app

        translator = Translator.load(runs, checkpoint or None, device, precision, backend).with_decoding(**settings)
        names = LOCAL_HOSTS | {host.lower()} if is_local(sock) else None
        title = ", ".join(os.path.basename(os.path.realpath(run)) for run in runs)
        app = create_app(translator, title, max_characters, queue_size, api_key or None, names)
        log.info("%s translates with %s; Ctrl-C ends it", url(sock), ", ".join(map(str, runs)))
        # Ctrl-C is how a server is meant to end.
        with contextlib.suppress(KeyboardInterrupt):
            make_server(app, os.environ.get(DEBUG, "0") not in ("", "0")).run(sockets=[sock])
