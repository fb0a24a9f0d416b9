"""`mtformer compare`."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli.eval_command import COMET_HELP

if TYPE_CHECKING:
    from mtformer.evaluation.compare import Comparison
    from mtformer.evaluation.systems import Material, System


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run directories, or with --ref files of hypotheses.", show_default=False
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A test set; default: each that all runs have scores on.", show_default=False),
    ] = None,
    ref: Annotated[
        list[Path] | None, typer.Option("--ref", help="File of references; several may be given.", show_default=False)
    ] = None,
    src: Annotated[Path | None, typer.Option("--src", help="File of sources, with --ref.", show_default=False)] = None,
    bleu_tokenizer: Annotated[
        str | None,
        typer.Option(
            "--bleu-tokenizer",
            metavar="NAME",
            help="With --ref: as the key of the `evaluation` section. Runs have their own.",
            show_default="13a",
        ),
    ] = None,
    group: Annotated[
        bool, typer.Option("--group/--no-group", help="Runs that differ in their seed only are one system.")
    ] = True,
    sentences: Annotated[
        int, typer.Option("--sentences", min=0, metavar="N", help="Show the N sentences that differ most.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Compare score cards that differ in data, metrics, decoding settings or precision."
        ),
    ] = False,
    comet: Annotated[str | None, typer.Option("--comet", metavar="MODEL", help=COMET_HELP, show_default=False)] = None,
) -> None:
    """Compare runs, or files of hypotheses: scores, significance, lengths, sentences. The first is the baseline.

    Scores are made anew from the translations that `eval` kept. P-values are sacreBLEU's own, by paired bootstrap
    resampling (1,000 samples) and paired approximate randomisation (10,000 trials); SACREBLEU_SEED sets their seed.
    """
    from mtformer.errors import ConfigError
    from mtformer.evaluation.systems import common_sets, group_runs, open_runs, read_material

    _check_options(paths, sets, ref, src, bleu_tokenizer, force)
    if ref:
        systems, materials = _files(paths, ref, src, bleu_tokenizer)
    else:
        runs = open_runs(paths)
        systems = group_runs(runs, group)
        materials = [read_material(name, runs, force) for name in common_sets(runs, sets or [])]
    if comet is not None and materials[0].sources is None:
        raise ConfigError("--comet judges by the sources too; give them with --src")
    _show(systems, _compare_all(systems, materials, sentences, comet), as_json)


def _check_options(
    paths: list[Path],
    sets: list[str] | None,
    ref: list[Path] | None,
    src: Path | None,
    bleu_tokenizer: str | None,
    force: bool,
) -> None:
    from mtformer.errors import ConfigError

    if len(paths) < 2:
        raise ConfigError(f"{paths[0]} alone: give at least two to compare")
    if ref and (sets or force):
        raise ConfigError("--set and --force are for runs; leave them out with --ref")
    if not ref and (src is not None or bleu_tokenizer is not None):
        raise ConfigError("--src and --bleu-tokenizer are for files of hypotheses; give --ref too")


def _files(
    paths: list[Path], ref: list[Path], src: Path | None, bleu_tokenizer: str | None
) -> "tuple[list[System], list[Material]]":
    from pydantic import ValidationError

    from mtformer.config.schema import EvaluationConfig
    from mtformer.errors import ConfigError
    from mtformer.evaluation.systems import group_runs, read_files

    if bleu_tokenizer == "auto":
        raise ConfigError("--bleu-tokenizer auto needs a language, which files do not have; name a tokenizer")
    try:
        evaluation = EvaluationConfig.model_validate({"bleu_tokenizer": bleu_tokenizer or "13a"})
    except ValidationError as error:
        raise ConfigError(f"--bleu-tokenizer '{bleu_tokenizer}': {error.errors()[0]['msg']}") from error
    runs, material = read_files(paths, ref, src, evaluation)
    return group_runs(runs), [material]


def _compare_all(
    systems: "list[System]", materials: "list[Material]", num_sentences: int, comet_model: str | None
) -> "list[Comparison]":
    from tqdm import tqdm

    from mtformer.evaluation.compare import compare as compare_one
    from mtformer.evaluation.compare import num_units

    comet = None
    if comet_model is not None:
        from mtformer.device import pick_device
        from mtformer.evaluation.comet import Comet

        comet = Comet(comet_model, pick_device("auto").type)
    total = num_units(systems, comet is not None) * len(materials)
    with tqdm(total=total, desc="compare", unit="test", disable=None, leave=False) as bar:
        return [compare_one(systems, material, num_sentences, comet, bar.update) for material in materials]


def _show(systems: "list[System]", comparisons: "list[Comparison]", as_json: bool) -> None:
    from mtformer.cli.compare_text import comparison_text, systems_text
    from mtformer.evaluation.compare import config_differences
    from mtformer.evaluation.systems import seed_of

    differences = config_differences(systems)
    if as_json:
        described: list[dict[str, Any]] = [
            {
                "name": system.name,
                "runs": [{"name": run.name, "path": str(run.path), "seed": seed_of(run)} for run in system.runs],
            }
            for system in systems
        ]
        values = {
            "systems": described,
            "config_differences": [{"key": key, "values": each} for key, each in differences],
            "sets": [asdict(comparison) for comparison in comparisons],
        }
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    width = shutil.get_terminal_size((100, 24)).columns
    blocks = [systems_text(systems, differences, width)]
    blocks += [comparison_text(comparison, [system.name for system in systems], width) for comparison in comparisons]
    typer.echo("\n\n".join("\n".join(block) for block in blocks if block))
    for comparison in comparisons:
        for line in [*comparison.ignored, *comparison.notes]:
            typer.echo(f"not alike on {comparison.name}: {line}", err=True)
