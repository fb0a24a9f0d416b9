"""`mtformer data`: inspect, clean, prepare and generate corpora."""

import json
import os
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from tqdm import tqdm

from mtformer.cli.help import Command, Group, examples
from mtformer.cli.options import ConfigArgument, OnOption, OverridesArgument, argument, optional
from mtformer.cli.output import echo, error_lines, printable, require_no_input, table_lines
from mtformer.cli.progress import ELAPSED, alive
from mtformer.cluster.workers import use_ray
from mtformer.config.data import DataConfig, JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.loading import load_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.data.check.check import check_corpora, num_bytes
from mtformer.data.check.clean import clean as clean_corpus
from mtformer.data.check.report import exceeded_limits, page, report_lines, unusual_styles, verdict
from mtformer.data.check.result import CorpusCheck
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

MEGABYTE = 1e6
"""Number of bytes."""

app = typer.Typer(cls=Group, no_args_is_help=True)

SrcLang = Annotated[str | None, optional("With files: source language code.", "--src-lang", metavar="LANG")]
"""Language of the source file."""
TgtLang = Annotated[str | None, optional("With files: target language code.", "--tgt-lang", metavar="LANG")]
"""Language of the target file."""
TokenizerFolder = Annotated[
    Path | None,
    optional("Folder of tokenizers to count tokens with (default: those of the run or config).", metavar="FOLDER"),
]
"""Tokenizers that count tokens."""


@app.command(
    cls=Command,
    epilog=examples(
        "mtformer data check configs/demo.yaml --html check.html",
        "mtformer data check train.en train.de --src-lang en --tgt-lang de",
    ),
)
def check(
    words: Annotated[
        list[str],
        argument(
            "A config, a run directory, two parallel files, or a TSV or JSONL file.",
            "CORPUS... [SECTION.KEY=VALUE]...",
        ),
    ],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    json: Annotated[Path | None, optional("Write all counts to this JSON file.", "--json", metavar="FILE")] = None,
    html: Annotated[
        Path | None, optional("Write histograms and samples to this HTML file.", "--html", metavar="FILE")
    ] = None,
    on: OnOption = None,
) -> None:
    """Inspect corpora before training: errors, duplicates, outliers, overlap, and pairs that the filters remove.

    The exit code is 1 if a limit in data.check or data.filters is exceeded.
    """
    for written in (json, html):
        require_no_input(written, *words)
    corpus = _load(words, src_lang, tgt_lang, tokenizer)
    data = corpus.config.data
    if not (data.sources or data.dev or data.test):
        raise ConfigError(f"{words[0]}: `data` has no corpus; add at least one source to data.train")

    result = _check(corpus, on)
    exceeded = exceeded_limits(result, data)
    try:
        if json is not None:
            _write_output(json, result.to_json())
        if html is not None:
            _write_output(html, page(result, exceeded))
    finally:  # after the files, because the reader of a pipe may end before the last line
        echo(*report_lines(result))

    error_lines("\n".join(excess.message for excess in exceeded))
    echo(verdict(exceeded, unusual_styles(result)))
    if exceeded:
        raise typer.Exit(1)


@app.command(
    cls=Command,
    epilog=examples(
        "mtformer data clean configs/demo.yaml clean",
        "mtformer data clean train.en train.de clean --src-lang en --tgt-lang de",
    ),
)
def clean(
    words_and_folder: Annotated[
        list[str],
        argument(
            "A config, a run directory, two parallel files, or a TSV or JSONL file; then the output folder.",
            "CORPUS... FOLDER [SECTION.KEY=VALUE]...",
        ),
    ],
    src_lang: SrcLang = None,
    tgt_lang: TgtLang = None,
    tokenizer: TokenizerFolder = None,
    gz: Annotated[bool, optional("Compress the written text files with gzip.", "--gz")] = False,
    on: OnOption = None,
) -> None:
    """Write the training pairs that the filters keep, the removed pairs with their reasons, and a report."""
    overrides = [word for word in words_and_folder if _is_override(word)]
    paths = [word for word in words_and_folder if not _is_override(word)]
    if len(paths) < 2:
        raise ConfigError(
            "too few arguments; give a config, a run directory or files, and after them the folder to write"
        )
    *paths, folder_name = paths
    folder = Path(folder_name)

    corpus = _load([*paths, *overrides], src_lang, tgt_lang, tokenizer)
    data = corpus.config.data
    _require_one_direction(data)
    require_files(data.train)
    if corpus.tokenizers is None:
        log.info("max_tokens and max_length_ratio are not applied without a tokenizer; name one with --tokenizer")

    pipeline = Pipeline(data.filters, data.languages(data.train[0]), corpus.tokenizers)
    with use_ray(on), tqdm(desc="clean", unit="pair", unit_scale=True, disable=None, leave=False) as bar:
        records = chain.from_iterable(read_raw_records(source, data, PAIRS_AT_ONCE) for source in data.train)
        report = clean_corpus(
            records, pipeline, folder, is_compressed=gz, num_workers=data.num_workers, progress=bar.update
        )

    has_token_counts = corpus.tokenizers is not None
    for line in report.lines():
        if has_token_counts or " tokens " not in line:
            log.info("%s", line)
    max_share = data.filters.max_filtered_share
    if not report.kept:
        log.warning(
            "%s: the filters kept no pairs; see the reasons in removed.tsv in this folder, and change data.filters",
            folder,
        )
    elif report.left_out_share > max_share:
        log.warning(
            "the filters removed more than data.filters.max_filtered_share (%g); see the reasons in removed.tsv",
            max_share,
        )
    log.info("written: %s", folder)


@app.command(cls=Command, epilog=examples("mtformer data prepare configs/demo.yaml"))
def prepare(config: ConfigArgument, overrides: OverridesArgument = None, on: OnOption = None) -> None:
    """Train the tokenizer and prepare the corpora of a config, which `mtformer train` then finds in the cache."""
    from mtformer.experiment.prepare import prepare_experiment

    loaded = resolve_paths(load_config(config, overrides or []).config)  # as in `train`: paths are part of cache keys
    with use_ray(on), TemporaryDirectory() as folder, alive("prepare", bar_format=ELAPSED):
        prepared = prepare_experiment(loaded, Path(folder) / "tokenizer")
    corpora = [*prepared.corpora, *(dev.corpus for dev in prepared.dev)]
    rows = [[corpus.name, f"{len(corpus.store):,} pairs", str(corpus.store.folder)] for corpus in corpora]
    echo(*table_lines(rows, right=[1]))


@app.command(cls=Command, epilog=examples("mtformer data demo demo"))
def demo(
    folder: Annotated[Path, argument("Folder to write.", "FOLDER")],
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the sentences.", metavar="N")] = 1,
) -> None:
    """Write a small English-German corpus, generated from a grammar, for a first training run."""
    echo(*map(str, write_demo(folder, seed).values()))
    if folder == Path("demo"):  # the folder that the config names
        log.info("train a small model on it: mtformer train configs/demo.yaml")
    log.info("for your own text, write a config with recommended sizes: mtformer init SRC TGT")


@app.command(cls=Command, epilog=examples("mtformer data cache --clear"))
def cache(
    clear: Annotated[bool, optional("Delete all entries that no other process is using.", "--clear")] = False,
) -> None:
    """List or delete the prepared corpora, tokenizers and converted models in the cache.

    The cache is MTFORMER_CACHE, or mtformer in XDG_CACHE_HOME (~/.cache), without folders named by data.cache_dir.
    """
    folder = cache_folder()
    rows = []
    for entry in entries(folder):
        size = _num_bytes_of(entry)
        outcome = ""
        if clear:
            outcome = "deleted" if delete_unused(entry) else "kept: in use"
        rows.append([str(entry.relative_to(folder)), f"{size / MEGABYTE:,.1f} MB", outcome])
    if clear:
        clear_leftovers(folder)
        clear_leftovers(folder / CTRANSLATE2)
    if rows:
        echo(*table_lines(rows, right=[1]))
    echo(f"{folder}: {len(rows)} entries", err=True)


def _check(corpus: "_Corpus", on: str | None) -> CorpusCheck:
    """Read the corpora, with a progress bar."""
    data = corpus.config.data
    normalizer = None if corpus.tokenizers is not None else Normalizer.of_config(corpus.config.tokenizer)
    total = num_bytes(data) or None
    with use_ray(on), tqdm(total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:

        def advance(name: str, num_pairs: int, size: int) -> None:
            bar.set_description(printable(f"{name}: {num_pairs:,} pairs"), refresh=False)
            bar.update(size)

        return check_corpora(data, corpus.tokenizers, advance, normalizer)


def _write_output(path: Path, text: str) -> None:
    with explain_write_errors(f"{path}:", "name another file"):
        write_text(path, text)


def _num_bytes_of(folder: Path) -> int:
    """Return the size of the files in a folder, which another process may be changing."""
    try:
        return sum(file.stat().st_size for file in folder.rglob("*"))
    except FileNotFoundError:  # a preparation in progress has deleted a file
        return 0


# ---- corpora that the command line names ----------------------------------------------------------------------------


class _Corpus(NamedTuple):
    """A config with corpora, and the tokenizers that count their tokens."""

    config: Config
    tokenizers: TokenizerPair | None


def _load(words: Sequence[str], src_lang: str | None, tgt_lang: str | None, tokenizer_folder: Path | None) -> _Corpus:
    """Return the config that `words` name, or a config for the files that they name, and the tokenizers.

    Overrides in `words` apply to the config. The tokenizers are those of the folder, the run, or named in the config.
    """
    overrides = [word for word in words if _is_override(word)]
    paths = [word for word in words if not _is_override(word)]
    if not paths:
        raise ConfigError(f"{words[0]}: overrides need a config; name a config, a run directory, or files first")

    first = Path(paths[0])
    if first.is_dir() or first.suffix in (".yaml", ".yml"):
        if src_lang is not None or tgt_lang is not None:
            raise ConfigError(
                "--src-lang and --tgt-lang are for files; remove them, because a config has its own languages"
            )
        if len(paths) > 1:
            raise ConfigError(f"{paths[1]}: give only one config; write overrides as section.key=value")
        file = RunDir.open(first).config if first.is_dir() else first
        config = resolve_paths(load_config(file, overrides).config)
    else:
        if src_lang is None or tgt_lang is None:
            raise ConfigError(f"{first}: not a config (.yaml), so give its languages with --src-lang and --tgt-lang")
        config = _config_of_files(paths, src_lang, tgt_lang, overrides)

    tokenizers = _tokenizers(config, first, tokenizer_folder)
    if tokenizers is not None:
        tokenizers = with_tags(tokenizers, config.data)
    return _Corpus(config, tokenizers)


def _is_override(word: str) -> bool:
    """Return True if the word is section.key=value and not the name of a file."""
    return re.match(r"[\w.-]+=", word) is not None and not os.path.exists(word)


def _config_of_files(files: Sequence[str], src_lang: str, tgt_lang: str, overrides: Sequence[str]) -> Config:
    """Return the default config with these files as the training data."""
    languages = [f"data.src_lang={json.dumps(src_lang)}", f"data.tgt_lang={json.dumps(tgt_lang)}"]
    config = load_config(os.devnull, [*languages, *overrides]).config
    data = config.data.model_copy(update={"train": [_source(files)]})
    return config.model_copy(update={"data": data})


def _source(files: Sequence[str]) -> Source:
    """Return the source that the files form: two parallel files, or one file with both sides."""
    if len(files) > 2:
        raise ConfigError(f"{files[2]}: too many files; give a config, two parallel files, or one TSV or JSONL file")
    if len(files) == 2:
        return TextFiles(src=files[0], tgt=files[1])
    if suffixes(files[0])[0] == ".jsonl":
        return JsonlFile(jsonl=files[0])
    return TsvFile(tsv=files[0])


def _tokenizers(config: Config, path: Path, folder: Path | None) -> TokenizerPair | None:
    """Return the tokenizers in the folder that the user names, those of a run, or those that the config names."""
    if folder is not None:
        return TokenizerPair.load(folder)
    if path.is_dir():
        return TokenizerPair.load(RunDir(path).tokenizer)
    if config.training.init_from is not None:
        return TokenizerPair.load(RunDir.open(config.training.init_from).tokenizer)

    section = config.tokenizer
    if section.src_model is None:
        return None
    if section.joint:
        tokenizer = Tokenizer.load(section.src_model)
        return TokenizerPair(tokenizer, tokenizer)
    if section.tgt_model is None:
        return None
    return TokenizerPair(Tokenizer.load(section.src_model), Tokenizer.load(section.tgt_model))


def _require_one_direction(data: DataConfig) -> None:
    """Raise ConfigError if data.train does not have exactly one direction; log that data.corpora is not cleaned."""
    if not data.train:
        raise ConfigError("data.train: no training data; name at least one source")
    first_direction = "-".join(data.languages(data.train[0]))
    for source in data.train:
        direction = "-".join(data.languages(source))
        if direction != first_direction:
            raise ConfigError(
                f"{describe(source)}: is {direction}, but the first source of data.train is {first_direction}; "
                "clean the files of one direction at a time"
            )
    if data.corpora:
        log.info("only data.train is cleaned; clean the files of data.corpora (%s) too", ", ".join(data.corpora))
