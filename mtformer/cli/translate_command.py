"""`mtformer translate`: a filter, one line out for one line in."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli.eval_command import CHECKPOINT_HELP, ENSEMBLE_HELP, PRECISION_HELP

if TYPE_CHECKING:
    from mtformer.cli.line_files import ParallelLines
    from mtformer.decoding.translation import Translation
    from mtformer.decoding.translator import Translator


def translate(
    run: Annotated[
        list[Path], typer.Argument(help="Run directory or bundle; several are an ensemble.", show_default=False)
    ],
    source: Annotated[
        Path | None, typer.Option("--input", help="File to translate; default: stdin.", show_default=False)
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="File to write; default: stdout.", show_default=False)
    ] = None,
    continues: Annotated[bool, typer.Option("--continue", help="Go on with an --output that was interrupted.")] = False,
    prefixes: Annotated[
        Path | None,
        typer.Option("--prefixes", help="File: what translation n begins with, on line n.", show_default=False),
    ] = None,
    required: Annotated[
        Path | None,
        typer.Option(
            "--require", help="File: phrases that translation n must hold, tabs between, on line n.", show_default=False
        ),
    ] = None,
    forbidden: Annotated[
        Path | None,
        typer.Option("--forbid", help="File: phrases that no translation holds, one a line.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="An object a line: text, score, flags, and what else was asked for.")
    ] = False,
    attention: Annotated[bool, typer.Option("--attention", help="With --json: attention, piece by piece.")] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Source word - target word, as in 0-0 1-2, after ' ||| '.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help=PRECISION_HELP)] = "fp32",
    checkpoint: Annotated[
        list[str] | None, typer.Option(help=CHECKPOINT_HELP + ENSEMBLE_HELP, show_default=False)
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate lines from stdin (or a file) to stdout (or a file); interactive at a terminal.

    With --n-best the lines are as Moses writes them: number ||| text ||| score.
    """
    from mtformer.decoding.translator import Translator, override
    from mtformer.errors import ConfigError

    if continues and target is None:
        raise ConfigError("--continue goes on with a file; name it with --output")
    if attention and not as_json:
        raise ConfigError("--attention needs --json")
    translator = Translator.load(run, checkpoint or None, device, precision)
    translator.decoding = override(translator.decoding, **settings)
    arguments = {"forbidden": _phrases(forbidden), "attention": attention or alignment}
    write = _writer(translator.decoding.n_best, as_json, attention, alignment)
    if source is None and target is None and prefixes is None and required is None and sys.stdin.isatty():
        _converse(translator, write, arguments)
        return
    from mtformer.cli.line_files import parallel_lines

    with parallel_lines([source, *(path for path in (prefixes, required) if path is not None)]) as lines:
        given = [name for name, path in (("prefixes", prefixes), ("required", required)) if path is not None]
        work = _Work(translator, write, arguments, given, lines, source)
        if target is None:
            work.run(sys.stdout.buffer, lambda: sys.stdout.buffer.flush())
        else:
            made_with = {
                "weights": [str(path) for path in translator.weights],
                **translator.decoding.model_dump(mode="json"),
                "precision": translator.engine.dtype,
                **{"forbidden": arguments["forbidden"], "json": as_json, "attention": attention},
                **{"alignment": alignment, "files": given},
            }
            work.run_to_file(target, made_with, continues)


Write = Callable[[int, "Translation"], str]


class _Work:
    """Block after block, in order.

    Args:
        write: (number of the line, translation) -> lines of output.
        arguments: of `Translator.translate`.
        given: what the files beside the source are, in their order.
    """

    def __init__(
        self,
        translator: "Translator",
        write: Write,
        arguments: dict[str, Any],
        given: list[str],
        lines: "ParallelLines",
        source: Path | None,
    ) -> None:
        self.translator, self.write, self.arguments, self.given = translator, write, arguments, given
        self.lines, self.source = lines, source

    def run_to_file(self, target: Path, made_with: dict[str, Any], continues: bool) -> None:
        """Writes a file that appears when it is whole, and can be gone on with before."""
        from mtformer.cli.line_files import ResumableOutput

        output = ResumableOutput(target, made_with)
        if continues and target.exists() and not output.partial.exists():
            typer.echo(f"{target}: is whole already", err=True)
            return
        with output.open(self.lines, continues) as out:
            self.run(out, lambda: output.save(out, self.lines))
        output.finish()

    def run(self, out: IO[bytes], save: Callable[[], object]) -> None:
        """Translates what is left of the input; `save` is called after each block."""
        from tqdm import tqdm

        with tqdm(
            desc="translate",
            unit="line",
            total=self._num_lines(),
            initial=self.lines.num_lines,
            disable=None,
            leave=False,
        ) as bar:
            first_line = self.lines.num_lines
            for block in self.lines.blocks():
                beside: dict[str, Any] = dict(zip(self.given, block[1:], strict=True))
                if "required" in beside:
                    beside["required"] = [[p for p in line.split("\t") if p.strip()] for line in beside["required"]]
                translations = self.translator.translate(
                    block[0], first_line=first_line, progress=bar.update, **beside, **self.arguments
                )
                for number, translation in enumerate(translations, start=first_line):
                    out.write(self.write(number, translation).encode("utf-8"))
                first_line += len(translations)
                save()

    def _num_lines(self) -> int | None:
        """For the bar, where there is one."""
        if self.source is None or not sys.stderr.isatty():
            return None
        with self.source.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _converse(translator: "Translator", write: Write, arguments: dict[str, Any]) -> None:
    """A line typed, a translation shown, until the end of input."""
    typer.echo("type a sentence and press Enter; Ctrl-D ends", err=True)
    for number, line in enumerate(sys.stdin):
        translation = translator.translate([line.rstrip("\n")], first_line=number, **arguments)[0]
        typer.echo(write(number, translation), nl=False)


def _phrases(path: Path | None) -> list[str]:
    """One phrase a line; blank lines are none."""
    from mtformer.cli.line_files import parallel_lines

    if path is None:
        return []
    with parallel_lines([path]) as lines:
        return [line.strip() for block in lines.blocks() for line in block[0] if line.strip()]


def _writer(n_best: int, as_json: bool, attention: bool, alignment: bool) -> Write:
    """How a translation is written."""

    def aligned(one: "Translation") -> str:
        from mtformer.decoding.alignment import pharaoh

        return f" ||| {pharaoh(one.attention.alignment) if one.attention else ''}" if alignment else ""

    def write(number: int, one: "Translation") -> str:
        if as_json:
            return json.dumps(describe(one, attention, alignment), ensure_ascii=False) + "\n"
        if n_best == 1:
            return f"{one.text}{aligned(one)}\n"
        return "".join(
            f"{number} ||| {each.text} ||| {each.score:.6f}{aligned(each)}\n" for each in (one, *one.alternatives)
        )

    return write


def describe(one: "Translation", attention: bool = False, alignment: bool = False) -> dict[str, Any]:
    """A translation as JSON has it."""
    found: dict[str, Any] = {
        "text": one.text,
        "score": one.score,
        "log_probability": one.log_probability,
        "length": one.length,
        "token_log_probabilities": [round(value, 6) for value in one.token_log_probabilities],
        "flags": list(one.flags),
    }
    if alignment:
        found["alignment"] = one.attention.alignment if one.attention else []
    if attention and one.attention is not None:
        found["src_pieces"], found["tgt_pieces"] = one.attention.src_pieces, one.attention.tgt_pieces
        found["attention"] = [[round(weight, 5) for weight in row] for row in one.attention.weights]
    if one.alternatives:
        found["alternatives"] = [describe(other, attention, alignment) for other in one.alternatives]
    return found
