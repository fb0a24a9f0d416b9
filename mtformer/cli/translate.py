"""`mtformer translate`: read lines and write one translation per line."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from mtformer.cli.decoding_options import Load
from mtformer.cli.help import CONSTRAINTS, DEVICE, INPUT_OUTPUT
from mtformer.cli.line_files import ResumableOutput, parallel_lines
from mtformer.cli.options import ON_HELP, EnsembleArgument, ToOption, optional
from mtformer.cli.output import require_no_input
from mtformer.cli.translation_format import OutputFormat
from mtformer.cli.translation_job import TranslateBlock, TranslationJob, TranslatorDescription
from mtformer.cluster.workers import Workers, use_ray
from mtformer.data.corpus.formats import MARKUP
from mtformer.data.corpus.readers import TEXT, create_bytes, read_lines
from mtformer.errors import ConfigError, DataError
from mtformer.files import naming_file
from mtformer.hub import local_path
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.config.schema import DecodingConfig
    from mtformer.report.attention import AttentionFile

RERANK_HELP = (
    "Choose among the n best with another metric: NAME='COMMAND' with {src} and {hyp} for files, or NAME of a command "
    "in your settings; see docs/metrics.md."
)
"""Help of --rerank."""


def translate(
    runs: EnsembleArgument,
    source: Annotated[
        Path | None, optional("File to translate (default: stdin).", "--input", metavar="FILE", panel=INPUT_OUTPUT)
    ] = None,
    target: Annotated[
        Path | None, optional("File to write (default: stdout).", "--output", metavar="FILE", panel=INPUT_OUTPUT)
    ] = None,
    continues: Annotated[
        bool, optional("Resume an interrupted --output file.", "--continue", panel=INPUT_OUTPUT)
    ] = False,
    to: ToOption = None,
    prefixes: Annotated[
        Path | None, optional("File with a target prefix for each line.", metavar="FILE", panel=CONSTRAINTS)
    ] = None,
    required: Annotated[
        Path | None,
        optional("Required phrases for each line, tab-separated.", "--require", metavar="FILE", panel=CONSTRAINTS),
    ] = None,
    glossary: Annotated[
        Path | None, optional("Terms and their translations, tab-separated.", metavar="FILE", panel=CONSTRAINTS)
    ] = None,
    min_confidence: Annotated[
        float | None,
        optional(
            "Leave translations with a lower confidence blank.",
            "--only-above",
            metavar="X",
            panel=INPUT_OUTPUT,
            min=0.0,
            max=1.0,
        ),
    ] = None,
    html: Annotated[
        bool, optional("Lines, or the whole page, are HTML; keep the tags.", "--html", panel=INPUT_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, optional("Write a JSON object per line: text, score, flags.", "--json", panel=INPUT_OUTPUT)
    ] = False,
    json_attention: Annotated[
        bool, optional("With --json: add cross-attention weights.", "--json-attention", panel=INPUT_OUTPUT)
    ] = False,
    attention: Annotated[
        Path | None,
        optional("Write attention weights as .json, or heat maps as .html.", metavar="FILE", panel=INPUT_OUTPUT),
    ] = None,
    targets: Annotated[
        Path | None,
        optional("With --attention: analyze the translations in this file.", metavar="FILE", panel=INPUT_OUTPUT),
    ] = None,
    rerank: Annotated[str | None, optional(RERANK_HELP, metavar="METRIC", panel=INPUT_OUTPUT)] = None,
    on: Annotated[str | None, optional(ON_HELP, "--on", metavar="ADDRESS", panel=DEVICE)] = None,
    alignment: Annotated[
        bool, optional("Append ||| and word alignments, such as 0-0 1-2.", "--alignment", panel=INPUT_OUTPUT)
    ] = False,
    *,
    load: Load,
) -> None:
    """Translate each line when it is typed, if there are no files and stdin is a terminal.

    Decoding options default to the values in the run's config; see docs/decoding.md. Files may be plain, .gz,
    .xz, .zst or .bz2. With --n-best, lines have the format of Moses: number ||| text ||| score.
    """
    request = _Request(
        runs=list(map(local_path, runs)),
        load=load,
        source=source,
        target=None if target == Path("/dev/stdout") else target,  # opening it would truncate the shell's file
        continues=continues,
        to=to,
        prefixes=prefixes,
        required=required,
        glossary=glossary,
        min_confidence=min_confidence,
        is_html=html,
        is_json=as_json,
        has_json_attention=json_attention,
        attention=attention,
        targets=targets,
        rerank=rerank,
        ray_address=on,
        has_alignment=alignment,
    )
    _check_files(request)
    _check_combinations(request)
    _check_calibration(request)
    _translate(request)


@dataclass(frozen=True)
class _Request:
    """The values of the options of `translate`."""

    runs: list[Path]
    load: Load
    source: Path | None
    target: Path | None
    continues: bool
    to: str | None
    prefixes: Path | None
    required: Path | None
    glossary: Path | None
    min_confidence: float | None
    is_html: bool
    is_json: bool
    has_json_attention: bool
    attention: Path | None
    targets: Path | None
    rerank: str | None
    ray_address: str | None
    has_alignment: bool

    @property
    def is_resumable(self) -> bool:
        """True for an output file that is not a pipe or device, nor a link such as /dev/stderr to an open file."""
        if self.target is None:
            return False
        is_open = self.target.is_symlink() and self.target.is_relative_to("/dev")
        return not is_open and (self.target.is_file() or not self.target.exists())

    @property
    def side_files(self) -> dict[str, Path]:
        """Files that are read in parallel with the source, by the name of their argument."""
        files = {"prefixes": self.prefixes, "required": self.required, "targets": self.targets}
        return {name: path for name, path in files.items() if path is not None}

    @property
    def is_interactive(self) -> bool:
        """True if lines are typed at a terminal and translated one by one."""
        has_files = self.source is not None or self.target is not None or bool(self.side_files)
        return not has_files and self.ray_address is None and sys.stdin.isatty()


# ---- checks ---------------------------------------------------------------------------------------------------------


def _check_files(request: _Request) -> None:
    """Raise ConfigError if the output files cannot be used with the other options."""
    target = request.target
    if target is not None and target.is_dir():
        raise ConfigError(f"--output {target} is a folder; name a file")
    if request.continues and not request.is_resumable:
        raise ConfigError("--continue requires a file to resume; name it with --output")
    if request.attention is not None and request.attention == target:
        raise ConfigError("--attention and --output name the same file; name two files")

    inputs = (request.source, request.prefixes, request.required, request.targets, request.glossary)
    for output in (target, request.attention):
        require_no_input(output, *inputs)


def _check_combinations(request: _Request) -> None:
    """Raise ConfigError if two options exclude each other, or one is missing."""
    if request.has_json_attention and not request.is_json:
        raise ConfigError("--json-attention requires --json; add --json, or remove --json-attention")

    has_attention_file = request.attention is not None
    if request.targets is not None and not has_attention_file:
        raise ConfigError("--targets requires --attention FILE; add it, or remove --targets")
    if has_attention_file and request.continues:
        raise ConfigError("--attention needs all lines, but --continue skips some; remove one of them")
    if has_attention_file and request.ray_address is not None:
        raise ConfigError("--attention cannot be combined with --on; remove one of them")

    if request.rerank is not None and (request.is_html or request.ray_address is not None):
        raise ConfigError("--rerank cannot be combined with --html or --on; remove one of them")

    has_attention = has_attention_file or request.has_json_attention or request.has_alignment
    if request.is_html and (request.prefixes is not None or has_attention):
        raise ConfigError(
            "--html cannot be combined with --prefixes or attention (--attention, --json-attention, --alignment); "
            "remove them"
        )


def _check_calibration(request: _Request) -> None:
    """Raise ConfigError if a run has no confidence for --only-above, before its model is loaded."""
    if request.min_confidence is not None and len(request.runs) == 1 and not request.load.checkpoint:
        from mtformer.decoding.lines.confidence import require_calibration

        require_calibration(RunDir(request.runs[0]).confidence)


def _check_translator(request: _Request, description: TranslatorDescription) -> None:
    """Raise ConfigError if the options do not fit the settings of the translator."""
    decoding = description.decoding
    if request.is_html and (decoding.n_best > 1 or decoding.draws):
        raise ConfigError("--html needs a search for one translation; remove --n-best, --sampling and --mbr-samples")
    if request.min_confidence is not None and not description.is_calibrated:
        raise ConfigError(
            "--only-above needs one run with a confidence, without --checkpoint; run `mtformer eval RUN --calibrate` "
            "first"
        )


# ---- translation ----------------------------------------------------------------------------------------------------


def _translate(request: _Request) -> None:
    output = ResumableOutput(request.target) if request.target is not None and request.is_resumable else None
    lock: AbstractContextManager[None] = nullcontext() if output is None else output.locked()
    terms = None if request.glossary is None else _read_glossary(request.glossary)
    attention_file = _open_attention_file(request.attention)
    stdout = sys.stdout.buffer  # inside `use_ray`, stdout is replaced

    # Missing files, and an output that another process is writing, are reported before a model is loaded.
    inputs = [request.source, *request.side_files.values()]
    accepted = (*TEXT, *MARKUP) if request.is_html else TEXT
    with parallel_lines(inputs, accepted) as lines, lock, use_ray(request.ray_address):
        translate_block = _translate_block(request, terms)
        description = _describe(translate_block)
        _check_translator(request, description)
        job = TranslationJob(
            translate_block,
            lines,
            list(request.side_files),
            _output_format(request, description.decoding),
            description.watch,
            request.min_confidence,
            attention_file,
            is_on_ray=request.ray_address is not None,
        )

        if request.is_interactive:
            job.converse()
        elif output is not None:
            settings = _output_settings(request, description, terms)
            with naming_file(output.name):
                job.run_to_file(output, settings, request.continues)
        else:
            with _opened(request.target, stdout) as file:
                job.run(file, lambda end: file.flush())

        if attention_file is not None:
            attention_file.write()
    job.warn_of_flags()


def _translate_block(request: _Request, terms: dict[str, str] | None) -> TranslateBlock:
    """Return the function that translates, with the arguments that are the same for all lines."""
    arguments = {
        "attention": request.has_json_attention or request.has_alignment,
        "token_scores": request.is_json,
        "glossary": terms,
    }
    load = partial(request.load, request.runs, request.to)
    reranker = None
    if request.rerank is not None:
        from mtformer.evaluation.rerank import find_reranker

        reranker = find_reranker(request.rerank)
    return TranslateBlock(load, request.is_html, arguments, request.load.device, reranker=reranker)


def _describe(translate_block: TranslateBlock) -> TranslatorDescription:
    """Load the translator, where the blocks will be translated, and return its description."""
    with Workers(translate_block.describe, 1, translate_block.device) as workers:
        [(_, description)] = workers.map([None])
    return description


def _output_format(request: _Request, decoding: "DecodingConfig") -> OutputFormat:
    return OutputFormat(
        is_json=request.is_json,
        has_attention=request.has_json_attention,
        has_alignment=request.has_alignment,
        is_n_best=decoding.n_best > 1,
    )


def _output_settings(
    request: _Request, description: TranslatorDescription, terms: dict[str, str] | None
) -> dict[str, Any]:
    """Return all values that affect the output, except for the input; `--continue` requires the same ones."""
    optional_settings = {"glossary": terms, "html": request.is_html, "only_above": request.min_confidence}
    return {
        **{key: value for key, value in optional_settings.items() if value},
        **description.settings,
        "json": request.is_json,
        "attention": request.has_json_attention,
        "alignment": request.has_alignment,
        "files": list(request.side_files),
    }


def _open_attention_file(path: Path | None) -> "AttentionFile | None":
    if path is None:
        return None
    from mtformer.report.attention import AttentionFile

    return AttentionFile(path)


@contextmanager
def _opened(target: Path | None, stdout: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open an output that cannot be resumed: stdout, or a pipe or device."""
    if target is None:
        with naming_file(Path("stdout")):
            yield stdout
    else:
        with naming_file(target), create_bytes(target) as file:
            yield file


def _read_glossary(path: Path) -> dict[str, str]:
    """Return the terms in a file; raise DataError if a line does not have a source and a target term."""
    terms: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        is_complete = len(cells) == 2 and all(cells)
        if not is_complete or terms.get(cells[0], cells[1]) != cells[1]:
            raise DataError(
                f"{path}:{number}: give a new source term, a tab and a target term, not {line!r:.80} (terms that are "
                "already given must not change)"
            )
        terms[cells[0]] = cells[1]
    if not terms:
        raise DataError(f"{path}: has no terms, because it is empty; give lines with a source term, a tab and a target")
    return terms
