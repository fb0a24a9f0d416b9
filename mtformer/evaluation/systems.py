"""Systems to compare: scored runs, or files of hypotheses; runs of one config with several seeds are one system."""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtformer.config.fields import key_metadata
from mtformer.config.loading import config_diff, load_config
from mtformer.config.schema import Config, EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.errors import DataError
from mtformer.evaluation.card import differences, notes, read_card, read_texts
from mtformer.run_dir import SCORES, RunDir

SEED = "training.seed"
log = logging.getLogger("mtformer")


def distinguishes(key: str) -> bool:
    """Return True if runs that differ in this key are different systems: not in the seed or a key without effect."""
    return key != SEED and key_metadata(key).has_effect


@dataclass(frozen=True)
class Run:
    """A run directory, or a file of hypotheses.

    Args:
        name: its name in tables.
        path: as it was given.
        config: None for a file.
    """

    name: str
    path: Path
    config: Config | None = None


@dataclass(frozen=True)
class System:
    """Runs that differ in their seed only."""

    name: str
    runs: list[Run]


@dataclass(frozen=True)
class Material:
    """The translations of one test set, with sources and references.

    Args:
        name: of the test set.
        sources: None when they are not known.
        references: a list of lines for each reference.
        evaluation: the settings of the scores.
        outputs: the hypotheses by the path of their run.
        notes: differences in how they were made that do not make them incomparable, in words.
        ignored: what makes them incomparable and was overruled, in words.
    """

    name: str
    sources: list[str] | None
    references: list[list[str]]
    evaluation: EvaluationConfig
    outputs: dict[Path, list[str]]
    notes: list[str]
    ignored: list[str]


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Return run directories with their configs; raise MtformerError if one is none or is given twice."""
    for path in paths:
        if path.is_file():
            raise DataError(f"{path}: is a file, not a run directory; for files of hypotheses give --ref too")
    configs = [load_config(RunDir.open(path, verified=False).config).config for path in paths]
    names = _names(paths)
    return [Run(name, path, config) for name, path, config in zip(names, paths, configs, strict=True)]


def group_runs(runs: Sequence[Run], by_seed: bool = True) -> list[System]:
    """Return systems in the order of their first runs; their runs are ordered by seed.

    Runs whose configs are the same but for the seed are one system, unless a seed comes twice among them: two runs of
    one seed are no two samples.
    """
    groups: list[list[Run]] = []
    for run in runs:
        mine = [group for group in groups if by_seed and _same_but_for_seed(group[0], run)]
        if mine:
            mine[0].append(run)
        else:
            groups.append([run])
    systems = []
    for group in groups:
        seeds = {run.path: seed_of(run) or 0 for run in group}
        if len(set(seeds.values())) < len(group):
            systems += [System(run.name, [run]) for run in group]
        else:
            systems.append(System(_common_name(group), sorted(group, key=lambda run: seeds[run.path])))
    names = [system.name for system in systems]
    return [s if names.count(s.name) == 1 else System(s.runs[0].name, s.runs) for s in systems]


def seed_of(run: Run) -> int | None:
    """Return the seed of its training; None for a file."""
    return run.config.training.seed if run.config is not None else None


def common_sets(runs: Sequence[Run], wanted: Sequence[str] = ()) -> list[str]:
    """Return the test sets that all runs have scores on, or those asked for; raise DataError if there are none."""
    found = {run.path: _scored_sets(RunDir(run.path)) for run in runs}
    for path, names in found.items():
        if not names:
            raise DataError(f"{path}: nothing of it was scored yet; `mtformer eval {path}` does that")
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DataError(
                f"{path}: no scores on '{missing[0]}' (it has {', '.join(names)}); `mtformer eval` makes them"
            )
    common = set.intersection(*map(set, found.values()))
    if not common:
        has = "; ".join(f"{path} has {', '.join(names)}" for path, names in found.items())
        raise DataError(f"no test set that all have scores on: {has}; `mtformer eval` makes them")
    left_out = sorted({name for names in found.values() for name in names} - common)
    if left_out and not wanted:
        log.info("left out, for not all have scores on them: %s", ", ".join(left_out))
    return list(wanted) or sorted(common)


def read_material(name: str, runs: Sequence[Run], force: bool = False) -> Material:
    """Return the translations of a test set by runs, from their score cards.

    Args:
        name: of the test set.
        runs: all have scores on it.
        force: compare cards that differ, by the sources, references and metrics of the first.

    Raises:
        DataError: if a card is missing or damaged, or differs from the first one.
    """
    folders = [RunDir(run.path).evaluation(name) for run in runs]
    cards = [read_card(folder) for folder in folders]
    texts = [read_texts(folder, card) for folder, card in zip(folders, cards, strict=True)]
    ignored, different = [], []
    for run, card in zip(runs[1:], cards[1:], strict=True):
        found = differences(cards[0], card)
        what = f"{runs[0].path} and {run.path} on {name}: {'; '.join(found)}"
        if card.num_sentences != cards[0].num_sentences:
            raise DataError(f"{what}; what has not the same lines cannot be compared")
        if found and not force:
            raise DataError(f"{what}; --force compares them anyway, by the references and metrics of the first")
        ignored += [what] if found else []
        different += [f"{runs[0].name} and {run.name}: {note}" for note in notes(cards[0], card)]
    outputs = {run.path: each.hypotheses for run, each in zip(runs, texts, strict=True)}
    return Material(name, texts[0].sources, texts[0].references, cards[0].evaluation, outputs, different, ignored)


def read_files(
    hypotheses: Sequence[Path], references: Sequence[Path], sources: Path | None, evaluation: EvaluationConfig
) -> tuple[list[Run], Material]:
    """Return files of hypotheses as runs without a config; raise DataError if one is missing or lengths differ."""
    names = _names(hypotheses)
    paths = [*references, *([sources] if sources else []), *hypotheses]
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path}: is a folder; with --ref all arguments are files of hypotheses")
    lines = {path: read_lines(path) for path in paths}
    numbers = {len(some) for some in lines.values()}
    if len(numbers) > 1:
        has = ", ".join(f"{path} has {len(some):,}" for path, some in lines.items())
        raise DataError(f"files of unequal length: {has} lines; give files whose lines belong together")
    if numbers == {0}:
        raise DataError(f"{references[0]}: no lines, so there is nothing to compare")
    runs = [Run(name, path) for name, path in zip(names, hypotheses, strict=True)]
    streams, outputs = [lines[path] for path in references], {path: lines[path] for path in hypotheses}
    material = Material(references[0].name, lines[sources] if sources else None, streams, evaluation, outputs, [], [])
    return runs, material


def _scored_sets(run: RunDir) -> list[str]:
    return sorted(path.parent.name for path in run.evaluations.glob(f"*/{SCORES}"))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return distinct short names: those of the folders or files, or the whole paths."""
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise DataError(f"{path}: given twice; a run is not compared with itself")
    short = [path.name for path in resolved]
    return [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]


def _same_but_for_seed(a: Run, b: Run) -> bool:
    if a.config is None or b.config is None:
        return False
    return not any(distinguishes(key) for key, _, _ in config_diff(a.config, b.config))


def _common_name(group: Sequence[Run]) -> str:
    """Return the common part of the names without the seed: `deep` for `deep,seed=1` and `deep,seed=2`."""
    names = [run.name for run in group]
    front = _common_start(names)
    back = _common_start([name[len(front) :][::-1] for name in names])[::-1].lstrip("0123456789")
    front = re.sub(r"([-_.,]|\b)((seed|s)[-_.=]*\d*|[-_.=,]*)$", "", front)
    return (front + back).strip("-_.,=") if len(group) > 1 and (front or back) else names[0]


def _common_start(texts: Sequence[str]) -> str:
    return os.path.commonprefix(list(texts))  # noqa: RUF071  # they are no paths
