"""`mtformer config`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtformer.config.loading import LoadedConfig

app = typer.Typer(help="Look at configs.", no_args_is_help=True)

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment, or a run directory.", show_default=False)
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Values that replace the file's.", show_default=False),
]


@app.command()
def show(config: ConfigArgument, overrides: OverridesArgument = None) -> None:
    """Print every value and where it comes from: a file, an override, or the default."""
    for line in _listing(_load(config, overrides or [])):
        typer.echo(line)


@app.command()
def schema() -> None:
    """Print the JSON Schema of configs, for editors."""
    from mtformer.config.loading import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _load(path: Path, overrides: list[str]) -> "LoadedConfig":
    """A config file, or that of a run directory or bundle."""
    from mtformer.config.loading import load_config
    from mtformer.rundir import RunDir

    return load_config(RunDir.open(path, verified=False).config if path.is_dir() else path, overrides)


def _listing(loaded: "LoadedConfig") -> list[str]:
    """The config as YAML, with the origin of each value as a comment."""
    from mtformer.config.loading import dump_config, value_lines

    text = dump_config(loaded.config)
    lines = value_lines(text)
    comments = {lines[key]: f"# {origin}" for key, origin in loaded.origins.items()}
    rows = list(enumerate(text.split("\n")[:-1], start=1))
    width = min(40, max(len(line) for _, line in rows))
    return [f"{line:<{width}}  {comments.get(number, '')}".rstrip() for number, line in rows]
