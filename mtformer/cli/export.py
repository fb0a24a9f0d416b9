"""`mtformer export` and `mtformer import`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import CHECKPOINT_HELP, argument, optional
from mtformer.cli.output import echo
from mtformer.errors import ConfigError


class Format(str, Enum):
    """Export formats."""

    BUNDLE = "bundle"
    CTRANSLATE2 = "ctranslate2"
    HUGGINGFACE = "huggingface"


FORMAT_HELP = "bundle (for mtformer), ctranslate2 (for CTranslate2 and mtformer) or huggingface (for Transformers)."
LOADING = {
    Format.BUNDLE: "mtformer translate {!r}",
    Format.CTRANSLATE2: "ctranslate2.Translator({!r})",
    Format.HUGGINGFACE: "transformers.AutoModelForSeq2SeqLM.from_pretrained({!r})",
}
QUANTIZATION_HELP = "With ctranslate2: data type of the weights, such as int8, int16 or float16 (default: float32)."


def export(
    run: Annotated[Path, argument("Run directory.")],
    format_: Annotated[Format, typer.Option("--format", help=FORMAT_HELP)] = Format.BUNDLE,
    quantization: Annotated[str | None, optional(QUANTIZATION_HELP)] = None,
    output: Annotated[Path | None, optional("Folder to write (default: RUN/FORMAT).")] = None,
    checkpoint: Annotated[str | None, optional(CHECKPOINT_HELP)] = None,
) -> None:
    """Export a run as a bundle, or for CTranslate2 or Hugging Face Transformers."""
    from mtformer.run_dir import RunDir

    if quantization is not None and format_ is not Format.CTRANSLATE2:
        raise ConfigError("--quantization requires --format ctranslate2; remove it")
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
    echo(f"load it with: {LOADING[format_].format(str(target))}", err=True)


def import_model(
    marian_dir: Annotated[Path, argument("Folder of a Marian model from Hugging Face (OPUS-MT).")],
    run: Annotated[Path, argument("Bundle to write.")],
) -> None:
    """Convert a Marian model from Hugging Face to a bundle, which translates the same and can be trained further."""
    from mtformer.export.marian import import_marian

    import_marian(marian_dir, run)
    echo(str(run))
    echo(f"load it with: {LOADING[Format.BUNDLE].format(str(run))}", err=True)
