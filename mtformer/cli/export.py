"""`mtformer export` and `mtformer import`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import CHECKPOINT_HELP, argument, optional
from mtformer.cli.output import echo
from mtformer.errors import ConfigError


class Format(str, Enum):
    """Formats of an export."""

    BUNDLE = "bundle"
    CTRANSLATE2 = "ctranslate2"
    HUGGINGFACE = "huggingface"


FORMAT_HELP = (
    "bundle: weights, tokenizer and config in one folder; ctranslate2: for that library, and for "
    "`mtformer translate --backend ctranslate2`; huggingface: for `transformers`."
)
QUANTIZATION_HELP = (
    "With ctranslate2, what weights are stored in: int8, int16, float16, bfloat16 and more; default: float32."
)


def export(
    run: Annotated[Path, argument("Run directory.")],
    format_: Annotated[Format, typer.Option("--format", help=FORMAT_HELP)] = Format.BUNDLE,
    quantization: Annotated[str | None, optional(QUANTIZATION_HELP)] = None,
    output: Annotated[Path | None, optional("The folder to write; default: RUN/FORMAT.")] = None,
    checkpoint: Annotated[str | None, optional(CHECKPOINT_HELP)] = None,
) -> None:
    """Write a run in a form that can be given away."""
    from mtformer.run_dir import RunDir

    if quantization is not None and format_ is not Format.CTRANSLATE2:
        raise ConfigError("--quantization is for --format ctranslate2; leave it out")
    opened, target = RunDir.open(run), output or run / format_.value
    if format_ is Format.CTRANSLATE2:
        from mtformer.export.bundle import export_ctranslate2

        export_ctranslate2(opened, target, checkpoint, quantization)
    elif format_ is Format.HUGGINGFACE:
        from mtformer.export.huggingface import export_huggingface

        export_huggingface(opened, target, checkpoint)
    else:
        from mtformer.export.bundle import export_bundle

        export_bundle(opened, target, checkpoint)
    echo(str(target))


def import_model(
    marian_dir: Annotated[Path, argument("Hugging Face folder of a Marian model (OPUS-MT).")],
    run: Annotated[Path, argument("The bundle to write.")],
) -> None:
    """Convert a Marian model from Hugging Face to a bundle, which translates alike and can be trained on."""
    from mtformer.export.marian import import_marian

    import_marian(marian_dir, run)
    echo(str(run))
