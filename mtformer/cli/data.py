"""`mtformer data`: inspect, clean, prepare and generate corpora."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from tqdm import tqdm

from mtformer.cli.help import Command, Group
from mtformer.cli.options import ConfigArgument, OnOption, OverridesArgument, argument, optional
from mtformer.cli.output import echo, error_lines, printable, require_no_input, table_lines
from mtformer.cli.progress import ELAPSED, alive
from mtformer.cluster.workers import use_ray
from mtformer.config.data import JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.loading import load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.data.check.check import check_corpora, num_bytes
from mtformer.data.check.clean import clean as clean_corpus
from mtformer.data.check.report import exceeded_limits, page, report_lines, verdict
from mtformer.data.corpus.readers import suffixes
from mtformer.data.corpus.sources import describe, read_raw_records, require_files
from mtformer.data.demo import write_demo
from mtformer.data.store.cache import CTRANSLATE2, delete_unused, entries
from mtformer.data.store.pipeline import PAIRS_AT_ONCE, Pipeline
from mtformer.errors import ConfigError, explain_write_errors, log
from mtformer.files import cache_folder, clear_leftovers, write_text
from mtformer.run_dir import RunDir
from mtformer.text.normalization import Normalizer
from mtformer.text.tags import with_tags
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

app = typer.Typer(cls=Group, help="Check, clean, prepare and generate corpora; manage the cache.", no_args_is_help=True)

SrcLang = Annotated[str | None, optional("With files: source language code.", "--src-lang")]
TgtLang = Annotated[str | None, optional("With files: target language code.", "--tgt-lang")]
TokenizerFolder = Annotated[Path | None, optional("Folder of tokenizers (default: those of the run or config).")]


@app.command(cls=Command)
def check(
    words: Annotated[list[str], argument("A config, a run directory, two parallel files, or a TSV or JSONL file.")],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    json: Annotated[Path | None, optional("Write all counts to this JSON file.", "--json")] = None,
    html: Annotated[Path | None, optional("Write histograms and samples to this HTML file.", "--html")] = None,
    on: OnOption = None,
) -> None:
    """Inspect corpora before training: errors, duplicates, outliers, overlap, and pairs that the filters remove.

    The exit code is 1 if a limit in data.check or data.filters is exceeded.
    """
    for written in (json, html):
        require_no_input(written, *words)
    config, tokenizers = _load(words, src_lang, tgt_lang, tokenizer)
    data = config.data
    normalizer = None if tokenizers is not None else Normalizer.of_config(config.tokenizer)
    if not (data.sources or data.dev or data.test):
        raise ConfigError(f"{words[0]}: `data` has no corpus; add at least one source to data.train")
    with use_ray(on), tqdm(total=num_bytes(data) or None, unit="B", unit_scale=True, disable=None, leave=False) as bar:

        def advance(name: str, num_pairs: int, size: int) -> None:
            bar.set_description(printable(f"{name}: {num_pairs:,} pairs"), refresh=False)
            bar.update(size)

        result = check_corpora(data, tokenizers, advance, normalizer)
    exceeded = exceeded_limits(result, data)
    try:
        for path, text in ((json, result.to_json), (html, lambda: page(result, exceeded))):
            if path is not None:
                with explain_write_errors(f"{path}:", "name another file"):
                    write_text(path, text())
    finally:  # after the files, because the reader of a pipe may end before the last line
        echo(*report_lines(result))
    error_lines("\n".join(one.message for one in exceeded))
    echo(verdict(exceeded))
    if exceeded:
        raise typer.Exit(1)


@app.command(cls=Command)
def clean(
    words_and_folder: Annotated[
        list[str],
        argument("A config, a run directory, two parallel files, or a TSV or JSONL file; then the output folder."),
    ],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    gz: Annotated[bool, optional("Compress the written text files with gzip.", "--gz")] = False,
    on: OnOption = None,
) -> None:
    """Write the training pairs that the filters keep, the removed pairs with their reasons, and a report."""
    plain = [word for word in words_and_folder if not _is_override(word)]
    if len(plain) < 2:
        raise ConfigError("give a config or files, then the output folder")
    folder = Path(plain.pop())
    config, tokenizers = _load([*plain, *filter(_is_override, words_and_folder)], src_lang, tgt_lang, tokenizer)
    data = config.data
    _require_one_direction(config)
    require_files(data.train)
    pipeline = Pipeline(data.filters, data.languages(data.train[0]), tokenizers)
    if tokenizers is None:
        log.info("max_tokens and max_length_ratio are not applied without a tokenizer; name one with --tokenizer")
    with use_ray(on), tqdm(desc="clean", unit="pair", unit_scale=True, disable=None, leave=False) as bar:
        records = chain.from_iterable(read_raw_records(source, data, PAIRS_AT_ONCE) for source in data.train)
        report = clean_corpus(
            records, pipeline, folder, is_compressed=gz, num_workers=data.num_workers, progress=bar.update
        )
    for line in report.lines():
        if tokenizers is not None or " tokens " not in line:
            log.info("%s", line)
    max_share = data.filters.max_filtered_share
    if not report.kept:
        log.warning("%s: the filters kept no pairs; see removed.tsv in this folder, and data.filters", folder)
    elif report.left_out_share > max_share:
        log.warning("the filters removed more than data.filters.max_filtered_share (%g); see removed.tsv", max_share)
    log.info("written: %s", folder)


@app.command(cls=Command)
def prepare(config: ConfigArgument, overrides: OverridesArgument = None, on: OnOption = None) -> None:
    """Train the tokenizer and prepare the corpora of a config, which `mtformer train` then finds in the cache."""
    from mtformer.experiment.prepare import prepare_experiment

    loaded = resolve_paths(load_config(config, overrides or []).config)  # as in `train`: paths are part of cache keys
    with use_ray(on), TemporaryDirectory() as folder, alive("prepare", bar_format=ELAPSED):
        prepared = prepare_experiment(loaded, Path(folder) / "tokenizer")
    corpora = [*prepared.corpora, *(one.corpus for one in prepared.dev)]
    rows = [[corpus.name, f"{len(corpus.store):,} pairs", str(corpus.store.folder)] for corpus in corpora]
    echo(*table_lines(rows, right=[1]))


@app.command(cls=Command)
def demo(
    folder: Annotated[Path, argument("Folder to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the sentences.")] = 1,
) -> None:
    """Write a small English-German corpus, generated from a grammar, for a first training run."""
    echo(*map(str, write_demo(folder, seed).values()))


@app.command(cls=Command)
def cache(
    clear: Annotated[bool, optional("Delete all entries that no other process is using.", "--clear")] = False,
) -> None:
    """List or delete the prepared corpora, tokenizers and converted models in the cache.

    The cache is MTFORMER_CACHE, or mtformer in XDG_CACHE_HOME (~/.cache), without folders named by data.cache_dir.
    """
    folder = cache_folder()
    rows = []
    for entry in entries(folder):
        size = 0
        with suppress(FileNotFoundError):  # a preparation in progress has deleted a file
            size = sum(file.stat().st_size for file in entry.rglob("*"))
        done = ("deleted" if delete_unused(entry) else "kept: in use") if clear else ""
        rows.append([str(entry.relative_to(folder)), f"{size / 1e6:,.1f} MB", done])
    for place in (folder, folder / CTRANSLATE2) if clear else ():
        clear_leftovers(place)
    echo(*table_lines(rows, right=[1]) if rows else [])
    echo(f"{folder}: {len(rows)} entries", err=True)


def _load(
    words: Sequence[str], src_lang: str | None, tgt_lang: str | None, tokenizer_folder: Path | None
) -> tuple[Config, TokenizerPair | None]:
    """Return the config that `words` name, or a config for the files that they name, and the tokenizers.

    Overrides in `words` apply to the config. The tokenizers are those of the folder, the run, or named in the config.
    """
    overrides = list(filter(_is_override, words))
    paths = [word for word in words if word not in overrides]
    if not paths:
        raise ConfigError(f"{words[0]}: overrides need a config; name a config, a run directory, or files first")
    first = Path(paths[0])
    if first.is_dir() or first.suffix in (".yaml", ".yml"):
        if src_lang is not None or tgt_lang is not None:
            raise ConfigError("--src-lang and --tgt-lang are for files; a config has its own languages")
        if len(paths) > 1:
            raise ConfigError(f"{paths[1]}: give only one config; write overrides as section.key=value")
        config = resolve_paths(load_config(RunDir.open(first).config if first.is_dir() else first, overrides).config)
    else:
        if src_lang is None or tgt_lang is None:
            raise ConfigError(f"{first}: not a config (.yaml), so give its languages with --src-lang and --tgt-lang")
        codes = [f"data.src_lang={json.dumps(src_lang)}", f"data.tgt_lang={json.dumps(tgt_lang)}"]
        config = load_config(os.devnull, [*codes, *overrides]).config
        data = config.data.model_copy(update={"train": [_source(paths)]})
        config = config.model_copy(update={"data": data})
    if tokenizer_folder is not None:
        tokenizers: TokenizerPair | None = TokenizerPair.load(tokenizer_folder)
    elif first.is_dir():
        tokenizers = TokenizerPair.load(RunDir(first).tokenizer)
    else:
        tokenizers = _named_tokenizers(config)
    return config, tokenizers and with_tags(tokenizers, config.data)


def _is_override(word: str) -> bool:
    """Return True if the word is section.key=value and not the name of a file."""
    return re.match(r"[\w.-]+=", word) is not None and not os.path.exists(word)


def _source(files: Sequence[str]) -> Source:
    if len(files) > 2:
        raise ConfigError(f"{files[2]}: too many files; give a config, two parallel files, or one TSV or JSONL file")
    if len(files) == 2:
        return TextFiles(src=files[0], tgt=files[1])
    return JsonlFile(jsonl=files[0]) if suffixes(files[0])[0] == ".jsonl" else TsvFile(tsv=files[0])


def _named_tokenizers(config: Config) -> TokenizerPair | None:
    section = config.tokenizer
    if config.training.init_from is not None:
        return TokenizerPair.load(RunDir.open(config.training.init_from).tokenizer)
    if section.src_model is None or (section.tgt_model is None and not section.joint):
        return None
    src = Tokenizer.load(section.src_model)
    return TokenizerPair(src, src if section.joint else Tokenizer.load(section.tgt_model or ""))


def _require_one_direction(config: Config) -> None:
    """Raise ConfigError if data.train does not have exactly one direction; log that data.corpora is not cleaned."""
    data = config.data
    if not data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    first = "-".join(data.languages(data.train[0]))
    for source in data.train:
        if (direction := "-".join(data.languages(source))) != first:
            raise ConfigError(f"{describe(source)}: is {direction}, not {first}; clean one direction at a time")
    if data.corpora:
        log.info("only data.train is cleaned; clean the files of data.corpora (%s) too", ", ".join(data.corpora))
