"""`mtformer export` and `mtformer import`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mtformer.cli.options import CHECKPOINT_HELP, argument, optional
from mtformer.cli.output import echo
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir

Format = Literal["bundle", "ctranslate2", "huggingface"]
FORMAT_HELP = "bundle (for mtformer), ctranslate2 (for CTranslate2 and mtformer) or huggingface (for Transformers)."
LOADING = {
    "bundle": "mtformer translate {!r}",
    "ctranslate2": "ctranslate2.Translator({!r})",
    "huggingface": "transformers.AutoModelForSeq2SeqLM.from_pretrained({!r})",
}
QUANTIZATION_HELP = "With ctranslate2: data type of the weights, such as int8, int16 or float16 (default: float32)."


def export(
    run: Annotated[Path, argument("Run directory.")],
    format_: Annotated[Format, typer.Option("--format", help=FORMAT_HELP)] = "bundle",
    quantization: Annotated[str | None, optional(QUANTIZATION_HELP)] = None,
    output: Annotated[Path | None, optional("Folder to write (default: RUN/FORMAT).")] = None,
    checkpoint: Annotated[str | None, optional(CHECKPOINT_HELP)] = None,
) -> None:
    """Export a run as a bundle, or for CTranslate2 or Hugging Face Transformers."""
    from mtformer.export import bundle, huggingface

    if quantization is not None and format_ != "ctranslate2":
        raise ConfigError("--quantization requires --format ctranslate2; remove it")
    opened, target = RunDir.open(run), output or run / format_
    if format_ == "ctranslate2":
        bundle.export_ctranslate2(opened, target, checkpoint, quantization)
    elif format_ == "huggingface":
        huggingface.export_huggingface(opened, target, checkpoint)
    else:
        bundle.export_bundle(opened, target, checkpoint)
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
    echo(f"load it with: {LOADING['bundle'].format(str(run))}", err=True)
