"""`mtformer export` and `mtformer import`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mtformer.cli.options import CHECKPOINT_HELP, argument, optional
from mtformer.cli.output import clean_up_on_sigterm, echo
from mtformer.errors import ConfigError
from mtformer.run_dir import FINETUNE_CONFIG, RunDir

Format = Literal["bundle", "ctranslate2", "huggingface", "argos"]
"""Formats of exports."""
LOADING = {
    "bundle": "mtformer translate {!r}",
    "ctranslate2": "ctranslate2.Translator({!r})",
    "huggingface": "transformers.AutoModelForSeq2SeqLM.from_pretrained({!r})",
    "argos": "argostranslate.package.install_from_path({!r})",
}
"""Commands and Python expressions that load an export."""
FORMAT_HELP = (
    "bundle (weights, tokenizer and config for mtformer), ctranslate2 (for CTranslate2 and mtformer), huggingface (for "
    "Transformers) or argos (for Argos Translate and LibreTranslate)."
)
"""Help of --format."""
QUANTIZATION_HELP = (
    "With ctranslate2 or argos: data type of the weights, such as int8, int16, float16 or bfloat16 (default: float32)."
)
"""Help of --quantization."""
MAP_HELP = "With ctranslate2: search only likely target pieces, which is faster; some translations differ."
"""Help of --vocabulary-map."""
OUTPUT_HELP = "Folder to write (default: RUN/FORMAT), or file for argos (default: RUN/argos.argosmodel)."
"""Help of --output."""


def export(
    run: Annotated[Path, argument("Run directory.", "RUN")],
    format_: Annotated[Format, typer.Option("--format", help=FORMAT_HELP, metavar="FORMAT")] = "bundle",
    quantization: Annotated[str | None, optional(QUANTIZATION_HELP, metavar="TYPE")] = None,
    vocabulary_map: Annotated[bool, optional(MAP_HELP, "--vocabulary-map")] = False,
    output: Annotated[Path | None, optional(OUTPUT_HELP, metavar="FOLDER")] = None,
    checkpoint: Annotated[str | None, optional(CHECKPOINT_HELP, metavar="NAME")] = None,
) -> None:
    """Write a model card, README.md, into each export; state the license there."""
    from mtformer.export.bundle import export as write_export

    if quantization is not None and format_ not in ("ctranslate2", "argos"):
        raise ConfigError(
            "--quantization requires --format ctranslate2 or argos; add one of them, or remove --quantization"
        )
    if vocabulary_map and format_ != "ctranslate2":
        raise ConfigError("--vocabulary-map requires --format ctranslate2; add it, or remove --vocabulary-map")
    opened = RunDir.open(run)
    target = output or run / ("argos.argosmodel" if format_ == "argos" else format_)
    clean_up_on_sigterm()
    write_export(opened, target, checkpoint, format_, quantization, vocabulary_map)
    echo(str(target))
    echo(f"load it with: {LOADING[format_].format(str(target))}", err=True)


def import_model(
    marian_dir: Annotated[Path, argument("Folder of a Marian model from Hugging Face (OPUS-MT).", "FOLDER")],
    run: Annotated[Path, argument("Bundle to write.", "RUN")],
) -> None:
    """Also write a config for fine-tuning the model."""
    from mtformer.export.marian import import_marian

    import_marian(marian_dir, run)
    echo(str(run))
    echo(f"load it with: {LOADING['bundle'].format(str(run))}", err=True)

    config = run / FINETUNE_CONFIG
    text = config.read_text(encoding="utf-8").rstrip()
    echo(f"{config}:", text, err=True)
    echo(f"fine-tune it with: mtformer train {str(config)!r} --run-dir {f'{run}-finetuned'!r}", err=True)
