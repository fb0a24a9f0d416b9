"""The commands of the program, and their summaries and examples.

`mtformer --help` shows them without importing the modules of the commands, most of which import large packages.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from mtformer.cli.help import Command, examples


@dataclass(frozen=True)
class CommandEntry:
    """A command of the program, before its module is imported."""

    location: str
    """`module:attribute` in `mtformer.cli`: a function, or a Typer application with commands of its own."""
    summary: str
    """First paragraph of the help screen; the docstring of the function follows it."""
    epilog: str
    """Examples."""
    class_name: str | None = None
    """Class of the command in its module; None: `Command`."""


COMMANDS = {
    "init": CommandEntry(
        "init:init",
        "Write a config for a corpus, with recommended sizes and comments.",
        examples("mtformer init train.en train.de", "mtformer init --reverse en_de.yaml"),
        class_name="InitCommand",
    ),
    "train": CommandEntry(
        "train:train",
        "Train a model: tokenizer, data, training, averaging, test scores.",
        examples(
            "mtformer train configs/demo.yaml",
            "mtformer train configs/demo.yaml training.seed=2 --run-dir runs/seed2",
        ),
        class_name="TrainCommand",
    ),
    "adapt": CommandEntry(
        "adapt:adapt",
        "Fine-tune a model on new text without forgetting what it knows.",
        examples(
            "mtformer adapt runs/demo --train law.tsv --run-dir runs/law",
            "mtformer adapt runs/demo --train train.en,train.de --run-dir runs/new",
        ),
    ),
    "distill": CommandEntry(
        "distill:distill",
        "Train a small model on the translations of a large one.",
        examples(
            "mtformer distill runs/teacher --config student.yaml",
            "mtformer distill runs/a runs/b --config student.yaml --mono news.en",
        ),
    ),
    "translate": CommandEntry(
        "translate:translate",
        "Translate lines from stdin (or a file) to stdout (or a file).",
        examples(
            "mtformer translate runs/demo < in.en > out.de",
            "mtformer translate runs/demo --html < in.en > out.de",
        ),
    ),
    "serve": CommandEntry(
        "serve:serve",
        "Serve a model: a web page and an API compatible with LibreTranslate.",
        examples("mtformer serve runs/demo --port 5000"),
    ),
    "score": CommandEntry(
        "score:score",
        "Print the log-probability of given translations.",
        examples("mtformer score runs/demo test.en test.de --tokens"),
    ),
    "eval": CommandEntry(
        "eval:evaluate",
        "Score a model: BLEU, chrF2++ and TER on test sets.",
        examples(
            "mtformer eval runs/demo",
            "mtformer eval runs/demo --src test.en --ref test.de --beam-size 8",
        ),
    ),
    "exam": CommandEntry(
        "exam:exam",
        "Test a model's behavior on perturbed test lines: capitals, URLs, loops.",
        examples(
            "mtformer exam runs/demo",
            "mtformer exam runs/a runs/b --limits limits.yaml --json card.json",
        ),
    ),
    "compare": CommandEntry(
        "compare:compare",
        "Compare runs or hypothesis files: scores, significance, sentences.",
        examples(
            "mtformer compare runs/a runs/b",
            "mtformer compare a.txt b.txt --ref test.de --src test.en",
        ),
    ),
    "sweep": CommandEntry(
        "sweep:sweep",
        "Train many runs: a base config with combinations of values.",
        examples("mtformer sweep sweep.yaml --dry-run", "mtformer sweep sweep.yaml --jobs 2"),
    ),
    "runs": CommandEntry(
        "runs:runs",
        "List the runs in a folder: state, scores, speed, differences.",
        examples("mtformer runs", 'mtformer runs runs/sweep --sort "test BLEU" --all'),
    ),
    "report": CommandEntry(
        "runs:report",
        "Write an HTML report about runs.",
        examples("mtformer report runs/demo"),
    ),
    "track": CommandEntry(
        "track:track",
        "Send the metrics of a run to TensorBoard, W&B, Trackio or MLflow.",
        examples("mtformer track runs/demo --to tensorboard", "mtformer track runs/demo --to tensorboard --again"),
    ),
    "reproduce": CommandEntry(
        "reproduce:reproduce",
        "Repeat the first steps of a run and compare the losses exactly.",
        examples("mtformer reproduce runs/demo --steps 20"),
    ),
    "export": CommandEntry(
        "export:export",
        "Export a run: bundle, CTranslate2, Hugging Face, Argos Translate.",
        examples(
            "mtformer export runs/demo",
            "mtformer export runs/demo --format ctranslate2 --quantization int8",
        ),
    ),
    "push": CommandEntry(
        "push:push",
        "Upload a model to the Hugging Face Hub.",
        examples("mtformer push runs/demo --to hub:me/en-de --license apache-2.0"),
    ),
    "import": CommandEntry(
        "export:import_model",
        "Convert a Marian model from Hugging Face to a bundle.",
        examples("mtformer import opus-mt-en-de runs/opus"),
    ),
    "tokenizer": CommandEntry(
        "tokenizer:app",
        "Train and use tokenizers.",
        examples(
            "mtformer tokenizer train configs/demo.yaml tokenizer.vocab_size=4000",
            "mtformer tokenizer encode runs/demo < text.en > tokens.en",
        ),
    ),
    "data": CommandEntry(
        "data:app",
        "Check, clean, prepare and generate corpora; manage the cache.",
        examples("mtformer data demo demo", "mtformer data check configs/demo.yaml --html check.html"),
    ),
    "config": CommandEntry(
        "config:app",
        "Show configs and their JSON Schema.",
        examples(
            "mtformer config show configs/demo.yaml model.dropout=0.3",
            "mtformer config show --section training",
        ),
    ),
}
"""Commands by name, in the order of the help screen."""


def load_command(name: str) -> Any:
    """Return the Click command with this name, including its options, help and examples."""
    entry = COMMANDS[name]
    module_name, attribute = entry.location.split(":")
    module = import_module(f"mtformer.cli.{module_name}")
    target = getattr(module, attribute)

    command: Any
    if isinstance(target, typer.Typer):
        command = typer.main.get_group(target)
        command.name = name
        command.help = entry.summary
        command.epilog = entry.epilog
        return command

    command_class = Command if entry.class_name is None else getattr(module, entry.class_name)
    program = typer.Typer(add_completion=False)
    register = program.command(name, cls=command_class, help=_help_text(entry, target), epilog=entry.epilog)
    register(_with_options(target))
    return typer.main.get_command(program)


def _help_text(entry: CommandEntry, function: Callable[..., None]) -> str:
    """Return the summary and the docstring of a command."""
    details = inspect.getdoc(function)
    return f"{entry.summary}\n\n{details}"


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the decoding options to a command that loads a translator."""
    if "load" not in inspect.signature(function).parameters:
        return function
    from mtformer.cli.decoding_options import with_decoding_options

    return with_decoding_options(function)
