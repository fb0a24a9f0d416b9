"""`mtformer translate`: a filter, one line out for one line in."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli.eval_command import CHECKPOINT_HELP, ENSEMBLE_HELP, TO_HELP, BackendOption, PrecisionOption

if TYPE_CHECKING:
    from mtformer.cli.line_files import ParallelLines, ResumableOutput
    from mtformer.decoding.attention_maps import AttentionMaps
    from mtformer.decoding.translation import Attention, Translation
    from mtformer.decoding.translator import Translator
    from mtformer.report.attention import AttentionFile

log = logging.getLogger("mtformer")


def translate(
    run: Annotated[
        list[Path], typer.Argument(help="Run directory or bundle; several are an ensemble.", show_default=False)
    ],
    source: Annotated[
        Path | None,
        typer.Option("--input", help="File to translate, plain, .gz, .xz or .zst; default: stdin.", show_default=False),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--output", help="File to write, plain, .gz, .xz or .zst; default: stdout.", show_default=False),
    ] = None,
    continues: Annotated[bool, typer.Option("--continue", help="Resume an --output that was interrupted.")] = False,
    to: Annotated[str | None, typer.Option("--to", help=TO_HELP, show_default=False)] = None,
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
    json_attention: Annotated[
        bool, typer.Option("--json-attention", help="With --json: cross-attention, piece by piece.")
    ] = False,
    attention: Annotated[
        Path | None,
        typer.Option(
            "--attention",
            metavar="FILE.{json,png,html}",
            help="File of the attention of every layer and head: numbers, heat maps of one line, or a page.",
            show_default=False,
        ),
    ] = None,
    attention_layer: Annotated[
        int | None, typer.Option(help="Decoder layer of a .png, from 1; default: the last.", show_default=False)
    ] = None,
    attention_head: Annotated[
        int | None, typer.Option(help="Head of a .png, from 1; default: all.", show_default=False)
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            help="File: translations whose attention is written instead of that of the model's own, one a line.",
            show_default=False,
        ),
    ] = None,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Source word - target word, as in 0-0 1-2, after ' ||| '.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: PrecisionOption = None,
    backend: BackendOption = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help=CHECKPOINT_HELP + ENSEMBLE_HELP, show_default=False)
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate lines from stdin (or a file) to stdout (or a file); interactive at a terminal.

    With --n-best the lines are as Moses writes them: number ||| text ||| score.
    """
    from mtformer.cli.line_files import ResumableOutput, parallel_lines
    from mtformer.data.corpus.compressed import create_bytes
    from mtformer.errors import ConfigError

    if json_attention and not as_json:
        raise ConfigError("--json-attention needs --json")
    if attention is None and (attention_layer or attention_head or targets):
        raise ConfigError("--attention-layer, --attention-head and --targets need --attention FILE")
    if attention is not None and continues:
        raise ConfigError("--attention needs all lines; leave --continue out")
    if target is not None and target.is_dir():
        raise ConfigError(f"--output {target} is a folder; name a file")
    if continues and (target is None or _is_special(target)):
        raise ConfigError("--continue resumes a file; name it with --output")
    output = ResumableOutput(target) if target is not None and not _is_special(target) else None
    beside = {
        name: path
        for name, path in (("prefixes", prefixes), ("required", required), ("targets", targets))
        if path is not None
    }
    arguments = {"forbidden": _phrases(forbidden), "attention": json_attention or alignment, "token_scores": as_json}
    attention_file = None
    if attention is not None:
        from mtformer.report.attention import AttentionFile

        attention_file = AttentionFile(attention, attention_layer, attention_head)
    # Missing files, and an output that another process is writing, are reported before a model is loaded.
    with parallel_lines([source, *beside.values()]) as lines, output.locked() if output else nullcontext():
        from mtformer.decoding.translator import Translator

        translator = Translator.load(run, checkpoint or None, device, precision, backend)
        translator = translator.into(to).with_decoding(**settings)
        write = _writer(translator.decoding.n_best, as_json, json_attention, alignment)
        work = _Work(translator, write, arguments, list(beside), lines, attention_file)
        if source is None and target is None and not beside and sys.stdin.isatty():
            work.converse()
        elif output is not None:
            layout = {"json": as_json, "attention": json_attention, "alignment": alignment, "files": list(beside)}
            made_with = {**_made_by(translator), **layout, "forbidden": arguments["forbidden"]}
            work.run_to_file(output, made_with, continues)
        elif target is not None:
            with create_bytes(target) as out:
                work.run(out, out.flush)
        else:
            work.run(sys.stdout.buffer, sys.stdout.buffer.flush)
        work.write_attention()
    if not as_json:
        work.tell_doubts()


def _is_special(path: Path) -> bool:
    """A pipe or a device, such as /dev/null: to be written to, not replaced."""
    return path.exists() and not path.is_file()


def _made_by(translator: "Translator") -> dict[str, Any]:
    """All that a translation hangs on beside its input; not so how many sentences are computed together."""
    from mtformer.files import file_sha256
    from mtformer.text.tags import Target

    return {
        "weights": [f"{path.parent.name}/{path.name} {file_sha256(path)[:12]}" for path in translator.weights],
        **({"to": asked} if (asked := asdict(translator.engine.target)) != asdict(Target()) else {}),
        "device": translator.engine.device,
        "precision": translator.engine.dtype,
        **translator.decoding.model_dump(mode="json", exclude={"batch_tokens", "validation_beam_size"}),
    }


Write = Callable[[int, "Translation"], str]


class _Work:
    """Block after block, in order.

    Args:
        write: (number of the line, translation) -> lines of output.
        arguments: of `Translator.translate`.
        given: names of the files beside the source, in their order.
        attention_file: where the attention weights are written.
    """

    def __init__(
        self,
        translator: "Translator",
        write: Write,
        arguments: dict[str, Any],
        given: list[str],
        lines: "ParallelLines",
        attention_file: "AttentionFile | None" = None,
    ) -> None:
        self.translator, self.write, self.arguments, self.given = translator, write, arguments, given
        self.lines = lines
        self.attention_file = attention_file
        self.maps: list[tuple[int, AttentionMaps]] = []
        self.num_lines = 0
        self.doubts = Counter[str]()

    def run_to_file(self, output: "ResumableOutput", made_with: dict[str, Any], continues: bool) -> None:
        """Write a file that appears when it is complete and can be resumed before."""
        out = output.open(self.lines, made_with, continues)
        if out is None:
            return
        with out:
            try:
                self.run(out, lambda: output.save(out, self.lines))
            except KeyboardInterrupt:
                log.info("%s holds the finished lines; repeat the command with --continue to resume", output.partial)
                raise
        output.finish(self.lines)

    def converse(self) -> None:
        """A line typed, a translation shown, until the end of input."""
        typer.echo("type a sentence and press Enter; Ctrl-D ends", err=True)
        for number, line in enumerate(sys.stdin):
            translation = self.translator.translate([line.rstrip("\n")], first_line=number, **self.arguments)[0]
            typer.echo(self.write(number, translation), nl=False)
            self._add_attention(number, line, translation)

    def run(self, out: IO[bytes], save: Callable[[], object]) -> None:
        """Translates what is left of the input; `save` is called after each block."""
        from tqdm import tqdm

        first_line = self.lines.num_lines
        with tqdm(
            desc="translate", unit="line", total=self.lines.total, initial=first_line, disable=None, leave=False
        ) as bar:
            for block in self.lines.blocks():
                beside: dict[str, Any] = dict(zip(self.given, block[1:], strict=True))
                targets = beside.pop("targets", None)
                if "required" in beside:
                    beside["required"] = [[p for p in line.split("\t") if p.strip()] for line in beside["required"]]
                translations = self.translator.translate(
                    block[0], first_line=first_line, progress=bar.update, **beside, **self.arguments
                )
                for source, given, (number, translation) in zip(
                    block[0], targets or translations, enumerate(translations, start=first_line), strict=True
                ):
                    self._add_attention(number, source, given)
                    out.write(self.write(number, translation).encode("utf-8"))
                    self.doubts.update({flag.split(":")[0] for flag in translation.flags})
                first_line += len(translations)
                self.num_lines += len(translations)
                save()

    def _add_attention(self, number: int, source: str, translation: "str | Translation") -> None:
        """Compute the attention of a line that is not blank, if it was asked for."""
        from mtformer.decoding.attention_maps import attention_maps

        if self.attention_file is not None and source.strip():
            self.attention_file.check_num_lines(len(self.maps) + 1)
            self.maps.append((number + 1, attention_maps(self.translator, source, translation)))

    def write_attention(self) -> None:
        """Write the file of attention weights, if it was asked for."""
        if self.attention_file is not None:
            self.attention_file.write(self.maps)
            log.info("attention written to %s", self.attention_file.path)

    def tell_doubts(self) -> None:
        """What went wrong must not go by in silence where the output does not tell it."""
        from mtformer.decoding.quality import FORBIDDEN, LENGTH_LIMIT, MISSING, REPETITION

        told = [f"{self.doubts[flag]} {flag}" for flag in (MISSING, FORBIDDEN, LENGTH_LIMIT, REPETITION)]
        told = [one for one in told if not one.startswith("0 ")]
        if told:
            log.warning("flags of %d lines: %s; --json tells which", self.num_lines, ", ".join(told))


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
        "pieces": one.pieces,
        "token_log_probabilities": [round(value, 6) for value in one.token_log_probabilities],
        "flags": list(one.flags),
    }
    if alignment:
        found["alignment"] = one.attention.alignment if one.attention else []
    if attention:
        found["attention"] = _described(one.attention) if one.attention else None
    if one.alternatives:
        found["alternatives"] = [describe(other, attention, alignment) for other in one.alternatives]
    return found


def _described(attention: "Attention") -> dict[str, Any]:
    weights = [[round(weight, 5) for weight in row] for row in attention.weights]
    found = {"src_pieces": attention.src_pieces, "tgt_pieces": attention.tgt_pieces, "weights": weights}
    return found | ({"src_starts": attention.src_starts} if any(attention.src_starts) else {})
