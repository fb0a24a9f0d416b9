"""`mtformer data check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.data_arguments import SrcLang, TgtLang, TokenizerFolder, load_tokenizers, read_arguments

if TYPE_CHECKING:
    from mtformer.config.data import DataConfig
    from mtformer.data.check import CorpusCheck
    from mtformer.text.tokenizer import TokenizerPair

BROKEN = 1
"""Exit code when a limit of the config is broken."""


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
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures here.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with histograms here.", show_default=False),
    ] = None,
) -> None:
    """Look at corpora before training: faults, duplicates, outliers, overlap, and what the filters would leave out.

    Exits with 1 when a limit of data.check or data.filters is broken.
    """
    from mtformer.cli.output import error_lines
    from mtformer.data.check_making import make_report
    from mtformer.data.check_text import broken_limits, report_lines
    from mtformer.errors import ConfigError

    asked = read_arguments(words, src_lang, tgt_lang)
    data = asked.config.data
    if not (data.sources or data.dev or data.test):
        raise ConfigError(f"{words[0]}: data names no corpus; name at least one source in data.train")
    if html is not None:
        from mtformer.data.check_page import require_matplotlib

        require_matplotlib()
    report = make_report(_look(data, load_tokenizers(asked, tokenizer)))
    broken = broken_limits(report, data)
    for line in report_lines(report):
        typer.echo(line)
    if json is not None:
        _write(json, report.to_json())
    if html is not None:
        from mtformer.data.check_page import page

        _write(html, page(report, broken))
    error_lines("\n".join(broken))
    if broken:
        raise typer.Exit(BROKEN)


def _look(data: "DataConfig", tokenizers: "TokenizerPair | None") -> "CorpusCheck":
    from tqdm import tqdm

    from mtformer.data.check import check_corpora, num_bytes

    pairs = 0
    size = num_bytes(data)
    with tqdm(total=size or None, unit="B", unit_scale=True, disable=None, leave=False) as bar:

        def advance(name: str, more_pairs: int, more_bytes: int) -> None:
            nonlocal pairs
            pairs += more_pairs
            bar.set_description(name, refresh=False)
            bar.set_postfix_str(f"{pairs:,} pairs", refresh=False)
            bar.update(more_bytes)

        return check_corpora(data, tokenizers, advance)


def _write(path: Path, text: str) -> None:
    from mtformer.errors import told_writing
    from mtformer.rundir import write_text

    with told_writing(f"{path}:", "name another file"):
        write_text(path, text)
