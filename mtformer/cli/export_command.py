"""`mtformer export`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.eval_command import CHECKPOINT_HELP


class Format(str, Enum):
    """What a run can be exported to."""

    BUNDLE = "bundle"
    CTRANSLATE2 = "ctranslate2"
    HUGGINGFACE = "huggingface"


FORMAT_HELP = (
    "bundle: weights, tokenizer and config in one folder; ctranslate2: for that library, and for "
    "`mtformer translate --backend ctranslate2`; huggingface: for `transformers`."
)


def export(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    format_: Annotated[Format, typer.Option("--format", help=FORMAT_HELP)] = Format.BUNDLE,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            help="With ctranslate2, what weights are stored in: int8, int16, float16, bfloat16 and more; "
            "default: float32.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="The folder to write; default: RUN/FORMAT.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help=CHECKPOINT_HELP,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run in a form that can be given away."""
    from mtformer.errors import ConfigError
    from mtformer.run_dir import RunDir

    if quantization is not None and format_ is not Format.CTRANSLATE2:
        raise ConfigError("--quantization is for --format ctranslate2; leave it out")
    opened, target = RunDir.open(run), output or run / format_.value
    if format_ is Format.CTRANSLATE2:
        from mtformer.export.ctranslate2 import export_ctranslate2

        export_ctranslate2(opened, target, checkpoint, quantization)
    elif format_ is Format.HUGGINGFACE:
        from mtformer.export.huggingface import export_huggingface

        export_huggingface(opened, target, checkpoint)
    else:
        from mtformer.export.bundle import export_bundle

        export_bundle(opened, target, checkpoint)
    typer.echo(str(target))
