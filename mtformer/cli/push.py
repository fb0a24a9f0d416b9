"""`mtformer push`: upload a model to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import CHECKPOINT_HELP, argument, optional
from mtformer.cli.output import clean_up_on_sigterm, echo
from mtformer.run_dir import RunDir


def push(
    run: Annotated[Path, argument("Run directory or bundle.", "RUN")],
    to: Annotated[str, typer.Option(help="Repository on the Hub: hub:OWNER/NAME.", metavar="ADDRESS")],
    private: Annotated[bool, optional("Create a private repository, if it does not exist.", "--private")] = False,
    license_id: Annotated[
        str | None,
        optional("License as the Hub writes it, such as apache-2.0 or cc-by-4.0.", "--license", metavar="NAME"),
    ] = None,
    base_model: Annotated[
        str | None, optional("Model on the Hub that was fine-tuned: OWNER/NAME.", "--base-model", metavar="NAME")
    ] = None,
    dataset: Annotated[
        list[str] | None, optional("Training data on the Hub: OWNER/NAME; repeat for several.", metavar="NAME")
    ] = None,
    checkpoint: Annotated[str | None, optional(CHECKPOINT_HELP, metavar="NAME")] = None,
) -> None:
    """Upload a bundle and its model card, whose scores the Hub shows. Log in first with `hf auth login`.

    `mtformer translate hub:OWNER/NAME` downloads and uses it.
    """
    from mtformer.export.card_header import Ownership
    from mtformer.export.push import push as push_run

    clean_up_on_sigterm()
    ownership = Ownership(license_id, base_model, tuple(dataset or ()))
    echo(push_run(RunDir.open(run), to, ownership, checkpoint, private))
    echo(f"use it with: mtformer translate {to}", err=True)
