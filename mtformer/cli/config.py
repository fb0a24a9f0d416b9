"""`mtformer config`: print configs and their JSON Schema."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.help import Command, Group, examples
from mtformer.cli.options import OverridesArgument, argument, optional, require_at_most_one
from mtformer.cli.output import echo
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.config.loading import LoadedConfig

WIDTH = 118
"""Maximum width of comments."""
ORIGIN_COLUMN = 40
"""Column of the comments that name the origin of a value."""
app = typer.Typer(cls=Group, no_args_is_help=True)


@app.command(
    cls=Command,
    epilog=examples(
        "mtformer config show configs/demo.yaml model.dropout=0.3",
        "mtformer config show --section training",
    ),
)
def show(
    config: Annotated[
        Path | None,
        argument("YAML file of the experiment, or a run directory (default: all default values).", "CONFIG"),
    ] = None,
    overrides: OverridesArgument = None,
    section: Annotated[str | None, optional("Print only this section.", metavar="NAME")] = None,
    recommend: Annotated[
        bool, optional("Print a config with recommended sizes for the training corpus of CONFIG.", "--recommend")
    ] = False,
) -> None:
    """Print every value with its documentation and its origin: a file, an override, or the default."""
    from mtformer.config.loading import load_config, load_defaults
    from mtformer.config.schema import Config

    require_at_most_one({"--section": section, "--recommend": recommend})
    if section is not None and section not in Config.model_fields:
        raise ConfigError(f"--section {section}: no such section; the sections are {', '.join(Config.model_fields)}")
    if config is None:
        loaded = load_defaults()
    else:
        path = RunDir.open(config, verified=False).config if config.is_dir() else config
        loaded = load_config(path, overrides or [])
    lines = _recommended(loaded, config, overrides) if recommend else _listing(loaded, section)
    echo(*lines)


@app.command(cls=Command, epilog=examples("mtformer config schema > mtformer.schema.json"))
def schema() -> None:
    """Print the JSON Schema of configs (draft 7), with which editors complete and check them."""
    from mtformer.config.json_schema import json_schema

    echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _recommended(loaded: "LoadedConfig", path: Path | None, overrides: list[str] | None) -> Iterator[str]:
    """Yield a config that extends `path` with the recommended values, as YAML."""
    from mtformer.cli.progress import ELAPSED, alive
    from mtformer.config.yaml_text import write_yaml
    from mtformer.experiment.recommend import MAX_PAIRS, measure, recommend

    if path is None or path.is_dir():
        raise ConfigError("--recommend needs CONFIG, a YAML file that names the training corpus")
    if overrides:
        raise ConfigError("--recommend extends CONFIG as it is; set the values of overrides in the file instead")
    if loaded.config.training.init_from is not None:
        raise ConfigError(f"--recommend: training.init_from in {path} determines the model; remove it")
    with alive("read the corpus", bar_format=ELAPSED):
        corpus = measure(loaded.config)
    qualifier = "at least " if corpus.pairs == MAX_PAIRS else ""
    yield f"# Recommended for {qualifier}{corpus.pairs:,} training pairs; keep this file beside {path.name}."
    yield "# Models with rotary positions cannot be exported to Hugging Face; with sinusoidal positions they can."
    yield write_yaml({"extends": path.name, **recommend(corpus)}).rstrip("\n")


def _listing(loaded: "LoadedConfig", only: str | None) -> Iterator[str]:
    """Yield the config as YAML, with the documentation and the origin of each value as comments."""
    from mtformer.config.fields import documentation
    from mtformer.config.loading import dump_config
    from mtformer.config.yaml_text import Origin, dotted, read_yaml

    text = dump_config(loaded.config)
    path_of_line = {}
    _, origins = read_yaml(text, lambda line: Origin("file", line=line))
    for path, origin in origins.items():
        if isinstance(path[-1], str):
            path_of_line[origin.line] = path

    printed: set[str] = set()
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        path = path_of_line[number]
        if only not in (None, path[0]):
            continue
        description = documentation(path)
        if description and description not in printed:
            printed.add(description)
            yield from _comment(description, line)
        key = dotted(path)
        if key in loaded.origins:
            yield f"{line:<{ORIGIN_COLUMN}}  # {loaded.origins[key]}"
        else:
            yield line


def _comment(text: str, line: str) -> list[str]:
    """Return a comment with the indent of the line that follows it; the dash of a list counts as a space."""
    indent = line[: len(line) - len(line.lstrip(" -"))].replace("-", " ")
    start = f"{indent}# "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start)
