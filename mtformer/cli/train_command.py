"""`mtformer train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtformer.config.schema import Config


def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the experiment.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Values that replace the file's.", show_default=False),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Where the run lies; default: runs/ and the config's name.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete what is in the run directory and start anew.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, train nothing.")] = False,
) -> None:
    """Train a model: tokenizer, data, training, averaging, test scores."""
    from mtformer.config.loading import load_config
    from mtformer.errors import ConfigError

    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other; give one of them")
    loaded = load_config(config, overrides or [])
    run_dir = run_dir or Path("runs") / config.stem
    if dry_run:
        _dry_run(loaded.config)
    else:
        _train(loaded.config, run_dir, resume, overwrite, ["mtformer", "train", str(config), *(overrides or [])])


def _train(config: "Config", run_dir: Path, resume: bool, overwrite: bool, command: list[str]) -> None:
    import shlex

    from mtformer.cli.eval_command import config_sets, evaluate_sets
    from mtformer.cli.output import log_to_file
    from mtformer.cli.progress import TrainingProgress
    from mtformer.decoding.translator import Translator
    from mtformer.experiment.train import train_experiment
    from mtformer.rundir import RunDir
    from mtformer.training.loop import InterruptedRunError

    run = RunDir(run_dir)
    try:
        with log_to_file(run.log), TrainingProgress(config.training.max_steps) as progress:
            outcome = train_experiment(config, run, progress, resume, overwrite)
    except InterruptedRunError as stopped:
        again = shlex.join([*command, "--run-dir", str(run_dir), "--resume"])
        typer.echo(f"stopped at step {stopped.step}, saved; go on with: {again}", err=True)
        raise typer.Exit(128 + stopped.signal_number) from None
    position = outcome.position
    word = "already" if outcome.was_finished else "done"
    steps = f"{position.step} of {config.training.max_steps}"
    typer.echo(f"{word} at step {steps} ({position.seconds / 60:.1f} minutes): {run_dir}", err=True)
    if config.data.test:
        evaluate_sets(run_dir, config_sets(run_dir), Translator.load(run_dir, device=config.training.device))


def _dry_run(config: "Config") -> None:
    from mtformer.experiment.preflight import preflight

    for name, value in preflight(config):
        typer.echo(f"{name:<28} {value}")
