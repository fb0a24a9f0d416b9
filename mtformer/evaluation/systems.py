"""Systems to compare: scored runs or files of hypotheses. Runs that differ only in their seed form one system."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtformer.config.fields import key_metadata
from mtformer.config.loading import config_diff, load_config
from mtformer.config.schema import Config, EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.weights import are_others
from mtformer.errors import DataError, log
from mtformer.evaluation.card import differences, notes, read_card, read_texts
from mtformer.run_dir import SCORES, RunDir, run_names

SEED = "training.seed"


def distinguishes(key: str) -> bool:
    """Return True if the key distinguishes systems: it affects results and is not the seed."""
    return key != SEED and key_metadata(key).has_effect


@dataclass(frozen=True)
class Run:
    """A run directory, or a file of hypotheses, which has no config; `name` is shown in tables."""

    name: str
    path: Path
    config: Config | None = None

    @property
    def seed(self) -> int | None:
        """Training seed; None for a file."""
        return self.config.training.seed if self.config is not None else None


@dataclass(frozen=True)
class System:
    """Runs that differ only in their seed."""

    name: str
    runs: list[Run]


@dataclass(frozen=True)
class Material:
    """Translations of one test set, with sources and references."""

    name: str
    sources: list[str] | None
    references: list[list[str]]
    """One list of lines per reference."""
    evaluation: EvaluationConfig
    outputs: dict[Path, list[str]]
    """Hypotheses, keyed by the path of their run."""
    notes: list[str]
    """Differences between runs that do not affect comparability."""
    ignored: list[str]
    """Differences that make scores incomparable, ignored because of --force."""


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Return run directories with their configs; raise MtformerError if a path is not a run or is given twice."""
    for path in paths:
        if path.is_file():
            raise DataError(f"{path}: is a file, not a run directory; to compare files of hypotheses, add --ref")
    configs = [load_config(RunDir.open(path, verified=False).config).config for path in paths]
    return [Run(*each) for each in zip(_names(paths), paths, configs, strict=True)]


def group_runs(runs: Sequence[Run], by_seed: bool = True) -> list[System]:
    """Return systems in the order of their first runs; the runs of a system are sorted by seed.

    Runs whose configs differ only in the seed form one system, unless two have the same seed and are not independent.
    """
    groups: list[list[Run]] = []
    for run in runs:
        group = next((group for group in groups if by_seed and _is_same_system(group[0], run)), None)
        if group is None:
            groups.append(group := [])
        group.append(run)
    systems = []
    for group in groups:
        if len({run.seed for run in group}) < len(group):
            systems += [System(run.name, [run]) for run in group]
        else:
            systems.append(System(_common_name(group), sorted(group, key=lambda run: run.seed or 0)))
    names = [system.name for system in systems]
    return [one if names.count(one.name) == 1 else System(one.runs[0].name, one.runs) for one in systems]


def common_sets(runs: Sequence[Run], chosen: Sequence[str] = ()) -> list[str]:
    """Return `chosen`, or the test sets on which all runs have scores; raise DataError if scores are missing."""
    cards = {run.path: RunDir(run.path).evaluations.glob(f"*/{SCORES}") for run in runs}
    scored = {path: sorted(card.parent.name for card in found) for path, found in cards.items()}
    for path, names in scored.items():
        if not names:
            raise DataError(f"{path}: no scores yet; `mtformer eval {path}` computes them")
        missing = [name for name in chosen if name not in names]
        if missing:
            raise DataError(f"{path}: no scores on '{missing[0]}', only on {', '.join(names)}; run `mtformer eval`")
    common = set.intersection(*map(set, scored.values()))
    if not common:
        has = "; ".join(f"{path} has {', '.join(names)}" for path, names in scored.items())
        raise DataError(f"no test set on which all runs have scores: {has}; `mtformer eval` computes them")
    left_out = sorted(set().union(*scored.values()) - common)
    if left_out and not chosen:
        log.info("ignored test sets on which some runs have no scores: %s", ", ".join(left_out))
    return list(chosen) or sorted(common)


def read_material(name: str, runs: Sequence[Run], force: bool = False) -> Material:
    """Return the translations of a test set by several runs, with the sources, references and metrics of the first.

    Raise DataError if a card is missing or damaged or, without `force`, not comparable to the first one.
    """
    folders = [RunDir(run.path).evaluation(name) for run in runs]
    cards = [read_card(folder) for folder in folders]
    texts = [read_texts(folder, card) for folder, card in zip(folders, cards, strict=True)]
    ignored, different = [], []
    for run, card in zip(runs[1:], cards[1:], strict=True):
        found = differences(cards[0], card)
        what = f"{runs[0].path} and {run.path} on {name}: {'; '.join(found)}"
        if card.num_sentences != cards[0].num_sentences:
            raise DataError(f"{what}; only translations of the same lines can be compared")
        if found and not force:
            raise DataError(f"{what}; --force compares them anyway, with the references and metrics of the first run")
        ignored += [what] if found else []
        different += [f"{runs[0].name} and {run.name}: {note}" for note in notes(cards[0], card)]
    for run, card in zip(runs, cards, strict=True):
        metric = run.config.training.best_metric if run.config is not None else "loss"
        if are_others(RunDir(run.path), [one.sha256 for one in card.checkpoints], metric):
            different.append(f"{run.name}: scores of other weights than its current ones; run `mtformer eval`")
    outputs = {run.path: hypotheses for run, (_, hypotheses) in zip(runs, texts, strict=True)}
    test = texts[0][0]
    return Material(name, test.sources, test.references, cards[0].evaluation, outputs, different, ignored)


def read_files(
    hypotheses: Sequence[Path], references: Sequence[Path], sources: Path | None, evaluation: EvaluationConfig
) -> tuple[list[Run], Material]:
    """Return files of hypotheses as runs without a config; raise DataError if one is missing or line counts differ."""
    runs = [Run(name, path) for name, path in zip(_names(hypotheses), hypotheses, strict=True)]
    paths = [*references, *([sources] if sources else []), *hypotheses]
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path}: is a folder; with --ref all arguments are files of hypotheses")
    lines = {path: read_lines(path) for path in paths}
    numbers = {len(some) for some in lines.values()}
    if len(numbers) > 1:
        has = ", ".join(f"{path} has {len(some):,}" for path, some in lines.items())
        raise DataError(f"files of unequal length: {has} lines; give files with the same number of lines")
    if numbers == {0}:
        raise DataError(f"{references[0]}: no lines to compare")
    source_lines, outputs = lines[sources] if sources else None, {path: lines[path] for path in hypotheses}
    streams = [lines[path] for path in references]
    return runs, Material(references[0].name, source_lines, streams, evaluation, outputs, [], [])


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the names of different files or folders; raise DataError if one is given twice."""
    resolved = [Path(os.path.realpath(path)) for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise DataError(f"{path}: given twice; a run cannot be compared with itself")
    return run_names(paths)


def _is_same_system(a: Run, b: Run) -> bool:
    if a.config is None or b.config is None:
        return False
    return not any(distinguishes(key) for key, _, _ in config_diff(a.config, b.config))


def _common_name(group: Sequence[Run]) -> str:
    """Return the common part of the run names without the seed: `deep` for `deep,seed=1` and `deep,seed=2`."""
    names = [run.name for run in group]
    front = os.path.commonprefix(names)  # noqa: RUF071  # not paths
    ends = [name[len(front) :][::-1] for name in names]
    back = os.path.commonprefix(ends)[::-1].lstrip("0123456789")  # noqa: RUF071
    front = re.sub(r"([-_.,]|\b)((seed|s)[-_.=]*\d*|[-_.=,]*)$", "", front)
    return (front + back).strip("-_.,=") if len(group) > 1 and (front or back) else names[0]
