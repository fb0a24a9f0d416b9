"""`mtformer data check`."""

from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.data_arguments import SrcLang, TgtLang, TokenizerFolder, load_tokenizers, read_arguments


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG_OR_FILES... [SECTION.KEY=VALUE]...",
            help="A config or run directory, two parallel files, or one TSV or JSONL file.",
            show_default=False,
        ),
    ],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all counts to this file.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with histograms and samples.", show_default=False),
    ] = None,
) -> None:
    """Inspect corpora before training: faults, duplicates, outliers, overlap, and what the filters remove.

    Exits with 1 when a limit of data.check or data.filters is exceeded.
    """
    from tqdm import tqdm

    from mtformer.cli.output import error_lines
    from mtformer.data.check.check import check_corpora, num_bytes
    from mtformer.data.check.report import exceeded_limits, page, report_lines, verdict
    from mtformer.errors import ConfigError, told_writing
    from mtformer.files import write_text

    asked = read_arguments(words, src_lang, tgt_lang)
    data = asked.config.data
    if not (data.sources or data.dev or data.test):
        raise ConfigError(f"{words[0]}: data names no corpus; name at least one source in data.train")
    with tqdm(total=num_bytes(data) or None, unit="B", unit_scale=True, disable=None, leave=False) as bar:

        def advance(name: str, num_pairs: int, size: int) -> None:
            bar.set_description(f"{name}: {num_pairs:,} pairs", refresh=False)
            bar.update(size)

        result = check_corpora(data, load_tokenizers(asked, tokenizer), advance)
    exceeded = exceeded_limits(result, data)
    for line in report_lines(result):
        typer.echo(line)
    for path, text in ((json, result.to_json), (html, lambda: page(result, exceeded))):
        if path is not None:
            with told_writing(f"{path}:", "name another file"):
                write_text(path, text())
    error_lines("\n".join(one.message for one in exceeded))
    typer.echo(verdict(exceeded))
    if exceeded:
        raise typer.Exit(1)
