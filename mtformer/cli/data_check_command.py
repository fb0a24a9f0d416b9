"""`mtformer data check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtformer.config.data import DataConfig
    from mtformer.config.schema import Config
    from mtformer.data.check import CorpusCheck
    from mtformer.text.tokenizer import TokenizerPair

BROKEN = 1
"""Exit code when a limit of the config is broken."""
CONFIG_SUFFIXES = (".yaml", ".yml")


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG_OR_FILES",
            help="A config or run directory with [SECTION.KEY=VALUE]..., two parallel files, or one TSV or JSONL file.",
            show_default=False,
        ),
    ],
    src_lang: Annotated[
        str | None, typer.Option("--src-lang", help="With files: code of the source language.", show_default=False)
    ] = None,
    tgt_lang: Annotated[
        str | None, typer.Option("--tgt-lang", help="With files: code of the target language.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER",
            help="Tokenizers to count with; default: the config's models, or the run's.",
            show_default=False,
        ),
    ] = None,
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
    from mtformer.rundir import write_text

    data, tokenizers = _asked(words, src_lang, tgt_lang, tokenizer)
    if html is not None:
        from mtformer.data.check_page import require_matplotlib

        require_matplotlib()
    report = make_report(_look(data, tokenizers))
    broken = broken_limits(report, data)
    for line in report_lines(report):
        typer.echo(line)
    if json is not None:
        write_text(json, report.to_json())
    if html is not None:
        from mtformer.data.check_page import page

        write_text(html, page(report, broken))
    error_lines("\n".join(broken))
    if broken:
        raise typer.Exit(BROKEN)


def _asked(
    words: list[str], src_lang: str | None, tgt_lang: str | None, folder: Path | None
) -> "tuple[DataConfig, TokenizerPair | None]":
    """What is to be looked at, and with which tokenizers."""
    from mtformer.config.loading import load_config
    from mtformer.errors import ConfigError
    from mtformer.rundir import RunDir
    from mtformer.text.tokenizer import TokenizerPair

    first = Path(words[0])
    is_run = first.is_dir()
    if not is_run and first.suffix not in CONFIG_SUFFIXES:
        data = _files(words, src_lang, tgt_lang)
        return data, TokenizerPair.load(folder) if folder is not None else None
    if src_lang is not None or tgt_lang is not None:
        raise ConfigError("--src-lang and --tgt-lang are for files; a config names its languages itself")
    config = load_config(RunDir.open(first).config if is_run else first, words[1:]).config
    if not (config.data.sources or config.data.dev or config.data.test):
        raise ConfigError(f"{first}: data names no corpus; name at least one source in data.train")
    if folder is None and is_run:
        folder = RunDir(first).tokenizer
    return config.data, TokenizerPair.load(folder) if folder is not None else _models(config)


def _files(words: list[str], src_lang: str | None, tgt_lang: str | None) -> "DataConfig":
    """The config of files that are given by themselves."""
    from mtformer.config.data import DataConfig, JsonlFile, Source, TextFiles, TsvFile
    from mtformer.errors import ConfigError

    if src_lang is None or tgt_lang is None:
        raise ConfigError(f"{words[0]}: no config (.yaml), so say by --src-lang and --tgt-lang what it is")
    if len(words) > 2:
        raise ConfigError("give a config, two parallel files, or one TSV or JSONL file")
    source: Source
    if len(words) == 2:
        source = TextFiles(src=words[0], tgt=words[1])
    else:
        is_jsonl = ".jsonl" in Path(words[0]).suffixes
        source = JsonlFile(jsonl=words[0]) if is_jsonl else TsvFile(tsv=words[0])
    return DataConfig(src_lang=src_lang, tgt_lang=tgt_lang, train=[source])


def _models(config: "Config") -> "TokenizerPair | None":
    """The models that a config names."""
    from mtformer.text.tokenizer import Tokenizer, TokenizerPair

    section = config.tokenizer
    if section.src_model is None:
        return None
    src = Tokenizer.load(section.src_model)
    if section.joint:
        return TokenizerPair(src, src)
    return TokenizerPair(src, Tokenizer.load(section.tgt_model)) if section.tgt_model is not None else None


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
