"""`mtformer translate`: read lines and write one translation per line."""

import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from tqdm import tqdm

from mtformer.cli.decoding_options import Load
from mtformer.cli.line_files import ParallelLines, Position, ResumableOutput, parallel_lines
from mtformer.cli.options import EnsembleArgument, OnOption, ToOption, optional
from mtformer.cli.output import for_terminal, require_no_input
from mtformer.cluster.workers import Workers, use_ray
from mtformer.data.corpus.readers import create_bytes, read_lines
from mtformer.errors import ConfigError, DataError, log, require_extra
from mtformer.files import naming_file
from mtformer.run_dir import RunDir
from mtformer.text.tags import Target

if TYPE_CHECKING:
    from mtformer.config.schema import DecodingConfig
    from mtformer.decoding.lines.translation import Translation
    from mtformer.decoding.translator import Translator
    from mtformer.report.attention import AttentionFile


def translate(
    run: EnsembleArgument,
    source: Annotated[Path | None, optional("File to translate (default: stdin).", "--input")] = None,
    target: Annotated[Path | None, optional("File to write (default: stdout).", "--output")] = None,
    continues: Annotated[bool, optional("Resume an interrupted --output file.", "--continue")] = False,
    to: ToOption = None,
    prefixes: Annotated[Path | None, optional("File with a target prefix for each line.")] = None,
    required: Annotated[Path | None, optional("Required phrases for each line, tab-separated.", "--require")] = None,
    glossary: Annotated[Path | None, optional("Terms and their translations, tab-separated.", "--glossary")] = None,
    only_above: Annotated[
        float | None, optional("Leave translations with a lower confidence blank.", "--only-above", min=0.0, max=1.0)
    ] = None,
    html: Annotated[bool, optional("Lines, or the whole page, are HTML; keep the tags.", "--html")] = False,
    as_json: Annotated[bool, optional("Write a JSON object per line: text, score, flags.", "--json")] = False,
    json_attention: Annotated[bool, optional("With --json: add cross-attention weights.", "--json-attention")] = False,
    attention: Annotated[Path | None, optional("Write attention as .json or .html.")] = None,
    targets: Annotated[Path | None, optional("With --attention: file of translations to analyze.")] = None,
    on: OnOption = None,
    alignment: Annotated[bool, optional("Append ||| and word alignments, such as 0-0 1-2.", "--alignment")] = False,
    *,
    load: Load,
) -> None:
    """Translate lines from stdin (or a file) to stdout (or a file); interactive at a terminal.

    Decoding options default to the values in the run's config; see docs/decoding.md. Files may be plain, .gz, .xz or
    .zst. With --n-best, lines have the format of Moses: number ||| text ||| score.
    """
    target = None if target == Path("/dev/stdout") else target  # opening it again would truncate the shell's file
    is_resumable = target is not None and _is_resumable(target)
    errors = {
        "--json-attention requires --json": json_attention and not as_json,
        "--targets requires --attention FILE": targets is not None and attention is None,
        "--attention needs all lines, but --continue skips some; remove one of them": attention and continues,
        "--attention and --output name the same file": attention is not None and attention == target,
        "--attention cannot be combined with --on": attention is not None and on is not None,
        f"--output {target} is a folder; name a file": target is not None and target.is_dir(),
        "--continue requires a file to resume; name it with --output": continues and not is_resumable,
        "--html cannot be combined with options for each line (--prefixes, --require) or attention": html
        and (prefixes or required or attention or alignment or json_attention),
    }
    for message, applies in errors.items():
        if applies:
            raise ConfigError(message)
    for written in (target, attention):
        require_no_input(written, source, prefixes, required, targets, glossary)
    output = ResumableOutput(target) if target is not None and is_resumable else None
    files = {"prefixes": prefixes, "required": required, "targets": targets}
    beside = {name: path for name, path in files.items() if path is not None}
    terms = None if glossary is None else _terms(glossary)
    arguments = {"attention": json_attention or alignment, "token_scores": as_json, "glossary": terms}
    attention_file = None
    if attention is not None:
        from mtformer.report.attention import AttentionFile

        attention_file = AttentionFile(attention)
    if only_above is not None and len(run) == 1 and not load.checkpoint:
        from mtformer.decoding.lines.confidence import require_calibration

        require_calibration(RunDir(run[0]).confidence)
    stdout = sys.stdout.buffer  # inside `use_ray`, stdout is replaced
    # Missing files, and an output that another process is writing, are reported before a model is loaded.
    with parallel_lines([source, *beside.values()]) as lines, output.locked() if output else nullcontext(), use_ray(on):
        translate_block = TranslateBlock(partial(load, run, to), html, arguments, load.device)
        with Workers(translate_block.describe, 1, load.device) as workers:
            [(_, (decoding, is_calibrated, made_by))] = workers.map([None])
        if html and (decoding.n_best > 1 or decoding.draws):
            raise ConfigError("--html needs a search for one translation; remove --n-best, sampling and MBR")
        if only_above is not None and not is_calibrated:
            raise ConfigError("--only-above needs one run with a confidence (eval --calibrate), without --checkpoint")
        formats = as_json, json_attention, alignment, only_above, decoding.n_best == 1
        work = _Work(translate_block, *formats, list(beside), lines, on, attention_file)
        if source is None and target is None and not beside and on is None and sys.stdin.isatty():
            work.converse()
        elif output is not None:
            layout = {"json": as_json, "attention": json_attention, "alignment": alignment, "files": list(beside)}
            extra = {"glossary": terms, "html": html, "only_above": only_above}
            settings = {**{key: value for key, value in extra.items() if value}, **made_by, **layout}
            with naming_file(output.name):
                work.run_to_file(output, settings, continues)
        else:
            opened = nullcontext(stdout) if target is None else create_bytes(target)
            with naming_file(target or Path("stdout")), opened as out:
                work.run(out, lambda end: out.flush())
        if attention_file is not None:
            attention_file.write()
    work.warn_of_flags()


def _is_resumable(output: Path) -> bool:
    """Return False for a pipe or device, including links such as /dev/stderr to a file that a shell has opened."""
    is_open = output.is_symlink() and output.is_relative_to("/dev")
    return not is_open and (output.is_file() or not output.exists())


class Block(NamedTuple):
    """Consecutive lines with their options."""

    lines: list[str]
    first_line: int
    end: Position
    options: dict[str, Any]
    """Arguments of `Translator.translate` that have a value for each line."""
    targets: list[str] | None = None
    """Translations to analyze."""


@dataclass
class TranslateBlock:
    """Function that translates blocks of lines, in this process or on Ray; the first call loads the translator."""

    load: Callable[[], "Translator"]
    html: bool
    arguments: dict[str, Any]
    """Keyword arguments for `Translator.translate`."""
    device: str
    progress: Callable[[int], object] | None = None

    @cached_property
    def translator(self) -> "Translator":
        """The translator."""
        return self.load()

    def __call__(self, block: Block, num_threads: int = 1) -> "list[Translation]":
        """Translate a block."""
        translate: Callable[..., list[Translation]] = self.translator.translate
        if self.html:
            from mtformer.documents.html import translate_html

            translate = partial(translate_html, self.translator)
        arguments = {**self.arguments, **block.options, "progress": self.progress}
        return translate(block.lines, first_line=block.first_line, **arguments)

    def describe(self, item: None, num_threads: int) -> "tuple[DecodingConfig, bool, dict[str, Any]]":
        """Return the translator's settings, whether it has a fitted confidence, and all that affects translations.

        The last one excludes the input and the options of the command. Raise ConfigError if a package is missing.
        """
        if self.html:
            require_extra("--html", "html", "bs4")
        one = self.translator
        made_by = {
            "weights": [
                f"{path.parent.name}/{path.name} {sha256[:12]}"
                for path, sha256 in zip(one.weights, one.weight_hashes, strict=True)
            ],
            "device": one.engine.device,
            "precision": one.engine.dtype,
            **({} if one.engine.name == "mtformer" else {"backend": one.engine.name}),
            **one.decoding.output_settings(),
        }
        if one.engine.target != Target():
            made_by["to"] = asdict(one.engine.target)
        if one.calibration is not None:
            made_by["confidence"] = zlib.crc32(one.calibration.model_dump_json().encode())
        return one.decoding, one.calibration is not None, made_by


@dataclass
class _Work:
    translate_block: "TranslateBlock"
    as_json: bool
    json_attention: bool
    alignment: bool
    only_above: float | None
    is_single: bool
    """One translation per line, without n best."""
    given: list[str]
    """Names of the files that are read in parallel with the source, in order."""
    lines: ParallelLines
    on: str | None
    attention_file: "AttentionFile | None" = None
    num_lines: int = 0
    flags: Counter[str] = field(default_factory=Counter)

    def run_to_file(self, output: ResumableOutput, made_with: dict[str, Any], continues: bool) -> None:
        """Write an output file that can be resumed after an interruption and gets its final name when complete."""
        out = output.open(self.lines, made_with, continues)
        if out is None:
            return
        with out:
            try:
                self.run(out, lambda end: output.save(out, end))
            except KeyboardInterrupt:
                log.info("finished lines are in %s; repeat the command with --continue to resume", output.partial)
                raise
        output.finish(self.lines.position)

    def converse(self) -> None:
        """Translate each line typed at a prompt on stderr, until the end of the input."""
        with suppress(ImportError):
            import readline  # noqa: F401  # lets `input` edit and repeat lines
        typer.echo("type a sentence and press Enter; Ctrl-D exits", err=True)
        out = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # closed when the process exits
        os.dup2(2, 1)  # `input` writes the prompt to file descriptor 1
        with suppress(EOFError):
            for number in count():
                line = input("> ")
                translation = self.translate_block(Block([line], number, Position(number + 1, []), {}))[0]
                typer.echo(for_terminal(self._finish(number, line, translation, translation), out), out, nl=False)
        typer.echo(err=True)

    def run(self, out: IO[bytes], save: Callable[[Position], object]) -> None:
        """Translate the remaining input; call `save` after each block with its end."""
        total, first_line = self.lines.total, self.lines.num_lines
        with (
            tqdm(desc="translate", unit="line", total=total, initial=first_line, disable=None, leave=False) as bar,
            Workers(self.translate_block, 1, self.translate_block.device) as workers,
        ):
            self.translate_block.progress = bar.update if self.on is None else None
            for block, translations in workers.map(self._blocks()):
                analyzed: Sequence[str | Translation] = block.targets or translations
                for row, (source, translation) in enumerate(zip(block.lines, translations, strict=True)):
                    text = self._finish(block.first_line + row, source, analyzed[row], translation)
                    out.write(for_terminal(text, out).encode("utf-8"))
                bar.update(len(translations) if self.on is not None else 0)
                save(block.end)

    def _blocks(self) -> Iterator[Block]:
        """Yield the remaining lines; those of an HTML page as one."""
        blocks = self.lines.blocks()
        for block in _joined_page(blocks) if self.translate_block.html else blocks:
            options: dict[str, Any] = dict(zip(self.given, block[1:], strict=True))
            targets = options.pop("targets", None)
            if "required" in options:
                options["required"] = [[p for p in line.split("\t") if p.strip()] for line in options["required"]]
            end = self.lines.position
            yield Block(block[0], end.num_lines - len(block[0]), end, options, targets)

    def warn_of_flags(self) -> None:
        """Log one warning that counts the flags of all translations."""
        from mtformer.decoding.lines.translation import MEANINGS

        counts = [(self.flags[flag], meaning) for flag, meaning in MEANINGS.items() if self.flags[flag]]
        parts = [f"{n} of {self.num_lines} translations {does.format('s' * (n == 1))}" for n, does in counts]
        if parts:
            log.warning("%s (see --json)", ", ".join(parts))

    def _finish(self, number: int, source: str, analyzed: "str | Translation", translation: "Translation") -> str:
        """Return the output lines, after counting the flags and adding the attention of `analyzed` to its file."""
        if self.attention_file is not None:
            self.attention_file.add(self.translate_block.translator, number + 1, source, analyzed)
        self.flags.update({flag.split(":")[0] for flag in translation.flags})
        self.num_lines += 1
        confidence = 1.0 if translation.confidence is None else translation.confidence  # None without text
        if self.only_above is not None and confidence < self.only_above:
            translation = replace(translation, text="", alternatives=(), attention=None)
        if self.as_json:
            return json.dumps(_describe(translation, self.json_attention, self.alignment), ensure_ascii=False) + "\n"
        lines = ""
        for one in (translation, *translation.alternatives):
            lines += one.text if self.is_single else f"{number} ||| {one.text} ||| {one.score:.6f}"
            if self.alignment:
                pairs = one.attention.alignment if one.attention else []
                lines += " ||| " + " ".join(f"{src}-{tgt}" for src, tgt in pairs)
            lines += "\n"
        return lines


def _joined_page(blocks: Iterator[list[list[str]]]) -> Iterator[list[list[str]]]:
    """Yield blocks; if the first line with text starts an HTML page and does not end it, all lines become one."""
    for [lines] in blocks:
        start = next(filter(str.strip, lines), "").lower().lstrip("\ufeff \t")
        if start.startswith(("<!doctype", "<?xml", "<html")) and "</html" not in start:
            lines = ["\n".join([*lines, *(line for [more] in blocks for line in more)])]
        yield [lines]
        yield from blocks


def _terms(path: Path) -> dict[str, str]:
    """Return the terms in a file; raise DataError if a line does not have a source and a target term."""
    terms: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells) or terms.setdefault(*cells) != cells[1]:
            raise DataError(f"{path}:{number}: give a new source term, a tab and a target term, not {line!r:.80}")
    return terms


def _describe(one: "Translation", attention: bool, alignment: bool) -> dict[str, Any]:
    """Return a translation as a JSON object."""
    found: dict[str, Any] = {
        "text": one.text,
        "score": one.score,
        "log_probability": one.log_probability,
        "length": len(one.pieces),
        "pieces": one.pieces,
        "token_log_probabilities": [round(value, 6) for value in one.token_log_probabilities],
        "flags": list(one.flags),
    }
    if one.confidence is not None:
        found["confidence"] = one.confidence
    weights = one.attention
    if alignment:
        found["alignment"] = weights.alignment if weights else []
    if attention:
        found["attention"] = weights and {
            "src_pieces": weights.src_pieces,
            "tgt_pieces": weights.tgt_pieces,
            "weights": [[round(weight, 5) for weight in row] for row in weights.weights],
            **({"src_starts": weights.src_starts} if any(weights.src_starts) else {}),
        }
    if one.alternatives:
        found["alternatives"] = [_describe(other, attention, alignment) for other in one.alternatives]
    return found
