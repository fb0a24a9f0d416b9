"""Translation of an input in blocks of lines: from the lines and their options to the lines of the output."""

import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import typer
from tqdm import tqdm

from mtformer.cli.line_files import InputPosition, ParallelLines, ResumableOutput
from mtformer.cli.output import for_terminal
from mtformer.cli.translation_format import OutputFormat
from mtformer.cluster.workers import Workers
from mtformer.enums import Backend
from mtformer.errors import ConfigError, DataError, log
from mtformer.text.tags import Target

if TYPE_CHECKING:
    from mtformer.config.schema import DecodingConfig
    from mtformer.decoding.lines.input_watch import InputWatch
    from mtformer.decoding.lines.translation import Translation
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.external import ExternalMetric
    from mtformer.report.attention import AttentionFile

STDOUT_DESCRIPTOR = 1
"""File descriptor of stdout."""
STDERR_DESCRIPTOR = 2
"""File descriptor of stderr."""
MAX_FLAGGED_LINES = 10
"""Number of lines with a flag that are named at the end."""
WATCHED_LINES = 2000
"""Number of lines of HTML that are compared with the training text."""
WATCHED_HTML = 100_000
"""Number of characters of a line of HTML that are compared with the training text."""
PAGE_STARTS = ("<!doctype", "<?xml", "<html")
"""Starts of an HTML page, in lower case."""


class Block(NamedTuple):
    """Consecutive lines with their options."""

    lines: list[str]
    first_line: int
    end: InputPosition
    options: dict[str, Any]
    """Arguments of `Translator.translate` that have a value for each line."""
    targets: list[str] | None = None
    """Translations to analyze."""


class TranslatorDescription(NamedTuple):
    """Settings and properties of a translator that may run on another machine, for the command."""

    decoding: "DecodingConfig"
    is_calibrated: bool
    """True if the translator has a fitted confidence."""
    settings: dict[str, Any]
    """Everything that affects translations, except for the input and the options of the command."""
    watch: "InputWatch"
    """Comparison of the input with the training text."""


@dataclass
class TranslateBlock:
    """Function that translates blocks of lines, in this process or on Ray; the first call loads the translator."""

    load: Callable[[], "Translator"]
    is_html: bool
    arguments: dict[str, Any]
    """Keyword arguments for `Translator.translate`."""
    device: str
    progress: Callable[[int], object] | None = None
    reranker: "ExternalMetric | None" = None
    """Metric that chooses among the n best translations, or among all beams if `n_best` is 1."""

    @cached_property
    def _loaded(self) -> "Translator":
        return self.load()

    @cached_property
    def translator(self) -> "Translator":
        """The translator."""
        if not self._chooses_one:
            return self._loaded
        num_hypotheses = self._loaded.decoding.num_rows
        if num_hypotheses == 1:
            raise ConfigError("--rerank needs several translations of a line; set --beam-size above 1, or --n-best")
        return self._loaded.with_decoding(n_best=num_hypotheses)

    @property
    def _chooses_one(self) -> bool:
        """True if reranking gives one translation, although the search returns several."""
        return self.reranker is not None and self._loaded.decoding.n_best == 1

    def __call__(self, block: Block, num_threads: int = 1) -> "list[Translation]":
        """Translate a block."""
        translate: Callable[..., list[Translation]] = self.translator.translate
        if self.is_html:
            from mtformer.documents.html import translate_html

            translate = partial(translate_html, self.translator)
        arguments = {**self.arguments, **block.options}
        translations = translate(block.lines, first_line=block.first_line, progress=self.progress, **arguments)
        return translations if self.reranker is None else self._reranked(self.reranker, block.lines, translations)

    def _reranked(
        self, metric: "ExternalMetric", lines: Sequence[str], translations: "list[Translation]"
    ) -> "list[Translation]":
        from mtformer.evaluation.rerank import rerank

        reranked = rerank(metric, lines, translations)
        if self._chooses_one:
            return [replace(translation, alternatives=()) for translation in reranked]
        return reranked

    def describe(self, item: None, num_threads: int) -> TranslatorDescription:
        """Describe the translator."""
        translator = self.translator

        settings: dict[str, Any] = {
            "weights": _named_hashes(translator),
            "device": translator.engine.device,
            "precision": translator.engine.dtype,
            **translator.decoding.output_settings(),
        }
        if translator.engine.name != Backend.MTFORMER:
            settings["backend"] = translator.engine.name
        if translator.engine.target != Target():
            settings["to"] = asdict(translator.engine.target)
        if translator.calibration is not None:
            settings["confidence"] = zlib.crc32(translator.calibration.model_dump_json().encode())
        if self.reranker is not None:
            settings["rerank"] = [self.reranker.name, self.reranker.signature]
        is_calibrated = translator.calibration is not None
        return TranslatorDescription(self._loaded.decoding, is_calibrated, settings, translator.watch_input())


def _named_hashes(translator: "Translator") -> list[str]:
    """Return the folder, the name and the start of the checksum of each file of weights."""
    names = []
    for path, sha256 in zip(translator.weights, translator.weight_hashes, strict=True):
        names.append(f"{path.parent.name}/{path.name} {sha256[:12]}")
    return names


@dataclass
class TranslationJob:
    """Translation of an input, with counts of what happened."""

    translate_block: TranslateBlock
    lines: ParallelLines
    side_files: Sequence[str]
    """Names of the arguments that are read from files in parallel with the source, in the order of the files."""
    output_format: OutputFormat
    watch: "InputWatch"
    """Comparison of the input with the training text."""
    min_confidence: float | None = None
    """Translations with a lower confidence are left blank."""
    attention_file: "AttentionFile | None" = None
    """File for the attention of all lines."""
    is_on_ray: bool = False
    num_lines: int = 0
    """Number of translated lines."""
    flags: Counter[str] = field(default_factory=Counter)
    """Number of translations with each flag."""
    flagged_lines: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the first lines with each flag, from 1."""

    def run_to_file(self, output: ResumableOutput, settings: dict[str, Any], continues: bool) -> None:
        """Write an output file that can be resumed after an interruption and gets its final name when complete.

        Args:
            output: the file.
            settings: all values that affect the output, except for the input.
            continues: resume an interrupted output.
        """
        file = output.open(self.lines, settings, continues)
        if file is None:
            return
        with file:
            try:
                self.run(file, lambda end: output.save(file, end))
            except KeyboardInterrupt:
                log.info("finished lines are in %s; repeat the command with --continue to resume", output.partial)
                raise
        output.finish(self.lines.position)

    def run(self, file: IO[bytes], save: Callable[[InputPosition], object]) -> None:
        """Translate the remaining input; call `save` after each block with its end."""
        total = self.lines.total
        first_line = self.lines.num_lines
        with (
            tqdm(desc="translate", unit="line", total=total, initial=first_line, disable=None, leave=False) as bar,
            Workers(self.translate_block, 1, self.translate_block.device) as workers,
        ):
            if not self.is_on_ray:
                self.translate_block.progress = bar.update
            for block, translations in workers.map(self._blocks(), self.lines.is_silent):
                self._write(file, block, translations)
                if self.is_on_ray:
                    bar.update(len(translations))
                save(block.end)

    def converse(self) -> None:
        """Translate each line typed at a prompt on stderr, until the end of the input."""
        with suppress(ImportError):
            import readline  # noqa: F401  # lets `input` edit and repeat lines
        typer.echo("type a sentence and press Enter; Ctrl-D exits", err=True)

        # `input` writes the prompt to file descriptor 1, which therefore becomes stderr.
        stdout = open(os.dup(STDOUT_DESCRIPTOR), "w", encoding="utf-8")  # noqa: SIM115  # closed when the process exits
        os.dup2(STDERR_DESCRIPTOR, STDOUT_DESCRIPTOR)
        with suppress(EOFError):
            for number in count():
                line = input("> ")
                self._compare_with_training([line])
                block = Block([line], number, InputPosition(number + 1, []), options={})
                [translation] = self.translate_block(block)
                text = self._finish(number, line, translation, translation)
                typer.echo(for_terminal(text, stdout), stdout, nl=False)
        typer.echo(err=True)

    def warn_of_flags(self) -> None:
        """Log a warning for each flag, with the number of translations that have it and the first of their lines."""
        from mtformer.decoding.lines.translation import MEANINGS

        for flag, meaning in MEANINGS.items():
            num_flagged = self.flags[flag]
            if num_flagged:
                verb_ending = "s" if num_flagged == 1 else ""
                verdict = f"{num_flagged:,} of {self.num_lines:,} translations {meaning.format(verb_ending)}"
                log.warning("%s: %s", verdict, self._describe_lines(flag))

    def _describe_lines(self, flag: str) -> str:
        """Return the numbers of the lines with a flag, such as `lines 3 and 8`; of many lines, the first ones."""
        numbers = [f"{number:,}" for number in self.flagged_lines[flag]]
        num_more = self.flags[flag] - len(numbers)
        if num_more:
            hint = "" if self.output_format.is_json else " (--json shows the flags of each line)"
            return f"lines {', '.join(numbers)} and {num_more:,} more{hint}"
        *first_numbers, last_number = numbers
        return f"lines {', '.join(first_numbers)} and {last_number}" if first_numbers else f"line {last_number}"

    def _blocks(self) -> Iterator[Block]:
        """Yield the remaining lines; those of an HTML page as one."""
        blocks = self.lines.blocks()
        if self.translate_block.is_html:
            blocks = _joined_page(blocks)
        for lines, *side_lines in blocks:
            options: dict[str, Any] = dict(zip(self.side_files, side_lines, strict=True))
            targets = options.pop("targets", None)
            if "required" in options:
                options["required"] = [_phrases(line) for line in options["required"]]
            end = self.lines.position
            if end.num_lines <= WATCHED_LINES or not self.translate_block.is_html:  # HTML is read again for this
                self._compare_with_training(lines)
            yield Block(lines, end.num_lines - len(lines), end, options, targets)

    def _compare_with_training(self, lines: Sequence[str]) -> None:
        """Log a warning if the input is unlike the training text; each difference is named once."""
        texts = list(lines)
        if self.translate_block.is_html:
            from mtformer.documents.html import Fragment

            texts = []
            for line in lines:
                texts += Fragment(line[:WATCHED_HTML]).lines
        message = self.watch.add(texts)
        if message is not None:
            log.warning("%s", message)

    def _write(self, file: IO[bytes], block: Block, translations: "list[Translation]") -> None:
        """Write the translations of a block."""
        analyzed: Sequence[str | Translation] = block.targets or translations
        rows = zip(block.lines, analyzed, translations, strict=True)
        for number, (source, target, translation) in enumerate(rows, start=block.first_line):
            text = self._finish(number, source, target, translation)
            file.write(for_terminal(text, file).encode("utf-8"))

    def _finish(self, number: int, source: str, analyzed: "str | Translation", translation: "Translation") -> str:
        """Count the flags, add the attention to its file, and return the output lines of a translation.

        Args:
            number: number of the line, from 0.
            source: the line.
            analyzed: translation whose attention is added to the file.
            translation: translation that is written.
        """
        if self.attention_file is not None:
            self.attention_file.add(self.translate_block.translator, number + 1, source, analyzed)

        flags = {flag.split(":")[0] for flag in translation.flags}
        self.flags.update(flags)
        for flag in flags:
            flagged_lines = self.flagged_lines.setdefault(flag, [])
            if len(flagged_lines) < MAX_FLAGGED_LINES:
                flagged_lines.append(number + 1)
        self.num_lines += 1

        confidence = 1.0 if translation.confidence is None else translation.confidence  # None without text
        if self.min_confidence is not None and confidence < self.min_confidence:
            translation = replace(translation, text="", alternatives=(), attention=None)
        return self.output_format.lines(number, translation)


def _joined_page(blocks: Iterator[list[list[str]]]) -> Iterator[list[list[str]]]:
    """Yield blocks; if the first line with text starts an HTML page and does not end it, all lines become one.

    Blank lines at the start wait for the first line with text, so that the result does not depend on the blocks. Raise
    DataError if a page has side lines.
    """
    first_block: list[list[str]] = []
    for block in blocks:
        first_block = _joined(first_block, block)
        if _first_text(block[0]):
            break
    if not first_block:
        return

    first_lines, *side_lines = first_block
    start = _first_text(first_lines).lower().lstrip("\ufeff \t")
    if start.startswith(PAGE_STARTS) and "</html" not in start:
        if side_lines:
            raise DataError(
                "the input is one HTML page, and --require has phrases for each line; give each text of the page as a "
                "line of HTML, or use --glossary"
            )
        for [lines] in blocks:
            first_lines += lines
        first_block = [["\n".join(first_lines)]]
    yield first_block
    yield from blocks


def _joined(block: list[list[str]], next_block: list[list[str]]) -> list[list[str]]:
    """Return the lines of two blocks, of each file; the first block may be empty."""
    if not block:
        return [list(lines) for lines in next_block]
    return [lines + next_lines for lines, next_lines in zip(block, next_block, strict=True)]


def _first_text(lines: Sequence[str]) -> str:
    """Return the first line that is not blank, or an empty string."""
    return next((line for line in lines if line.strip()), "")


def _phrases(line: str) -> list[str]:
    """Return the required phrases in a line, which are separated by tabs."""
    return [phrase for phrase in line.split("\t") if phrase.strip()]
