"""Systems to compare: scored runs or files of hypotheses. Runs that differ only in their seed form one system."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtformer.config.fields import key_metadata
from mtformer.config.loading import config_diff, load_config
from mtformer.config.schema import Config, EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.weights import are_others
from mtformer.errors import DataError, log
from mtformer.evaluation.card import ScoreCard, notes, read_card, read_line_scores, read_texts, score_differences
from mtformer.evaluation.scores import (
    METRICS,
    Score,
    warn_of_tokenized_references,
    warn_of_tokenized_translations,
)
from mtformer.run_dir import SCORES, RunDir, run_names

SEED = "training.seed"
"""The key in which the runs of one system may differ."""
SEED_NAME = re.compile(r"(seed|s)?[-_.=]*\d+")
"""Name of a run that says only its seed."""


def distinguishes(key: str) -> bool:
    """Return True if the key distinguishes systems: it affects results and is not the seed."""
    return key != SEED and key_metadata(key).has_effect


@dataclass(frozen=True)
class Run:
    """A run directory, or a file of hypotheses, which has no config."""

    name: str
    """Name in tables."""
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
class ExternalScores:
    """Scores of several runs by a metric that another program computes; all are keyed by the path of the run."""

    name: str
    signature: str
    scores: dict[Path, float]
    of_lines: dict[Path, list[float]] | None
    """Scores of the lines, if all runs have them."""


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
    external: list[ExternalScores] = field(default_factory=list)
    """Scores by other programs that all runs have."""

    @property
    def num_measured(self) -> int:
        """Number of metrics of other programs with scores of the lines."""
        return sum(scores.of_lines is not None for scores in self.external)


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Return run directories with their configs; raise MtformerError if a path is not a run or is given twice."""
    for path in paths:
        if path.is_file():
            raise DataError(f"{path}: is a file, not a run directory; to compare files of hypotheses, add --ref")
    runs = []
    for name, path in zip(_distinct_names(paths), paths, strict=True):
        config_file = RunDir.open(path, verified=False).config
        runs.append(Run(name, path, load_config(config_file).config))
    return runs


def group_runs(runs: Sequence[Run], by_seed: bool = True) -> list[System]:
    """Return systems in the order of their first runs; the runs of a system are sorted by seed.

    Runs whose configs differ only in the seed form one system, unless two have the same seed and are not independent.
    """
    groups: list[list[Run]] = []
    for run in runs:
        matching_groups = [group for group in groups if by_seed and _is_same_system(group[0], run)]
        if matching_groups:
            matching_groups[0].append(run)
        else:
            groups.append([run])

    systems = []
    for group in groups:
        seeds = {run.seed for run in group}
        if len(seeds) == len(group):
            sorted_runs = sorted(group, key=lambda run: run.seed or 0)
            systems.append(System(_common_name(group), sorted_runs))
        else:
            systems += [System(run.name, [run]) for run in group]
    return _with_distinct_names(systems)


def _with_distinct_names(systems: Sequence[System]) -> list[System]:
    """Return the systems, of which those with the same name get the name of their first run."""
    names = [system.name for system in systems]
    renamed_systems = []
    for system in systems:
        is_unique = names.count(system.name) == 1
        name = system.name if is_unique else system.runs[0].name
        renamed_systems.append(System(name, system.runs))
    return renamed_systems


def common_sets(runs: Sequence[Run], chosen: Sequence[str] = ()) -> list[str]:
    """Return `chosen`, or the test sets on which all runs have scores; raise DataError if scores are missing."""
    tests_of: dict[Path, list[str]] = {}
    """Names of the test sets on which each run has scores."""
    for run in runs:
        cards = RunDir(run.path).evaluations.glob(f"*/{SCORES}")
        tests_of[run.path] = sorted(card.parent.name for card in cards)

    for path, names in tests_of.items():
        if not names:
            raise DataError(f"{path}: no scores yet; `mtformer eval {path}` computes them")
        missing = [name for name in chosen if name not in names]
        if missing:
            raise DataError(f"{path}: no scores on '{missing[0]}', only on {', '.join(names)}; run `mtformer eval`")

    common = set.intersection(*map(set, tests_of.values()))
    if not common:
        sets_of_runs = "; ".join(f"{path} has {', '.join(names)}" for path, names in tests_of.items())
        raise DataError(f"no test set on which all runs have scores: {sets_of_runs}; `mtformer eval` computes them")
    if chosen:
        return list(chosen)

    ignored = set().union(*tests_of.values()) - common
    if ignored:
        log.info("ignored test sets on which some runs have no scores: %s", ", ".join(sorted(ignored)))
    return sorted(common)


def read_material(name: str, runs: Sequence[Run], force: bool = False) -> Material:
    """Return the translations of a test set by several runs, with the sources, references and metrics of the first.

    Args:
        name: name of the test set.
        runs: the runs.
        force: accept scores that are not comparable to those of the first run, and list the reasons in `ignored`.

    Raises:
        DataError: if a card is missing or damaged or, without `force`, not comparable to the first one.
    """
    folders = [RunDir(run.path).evaluation(name) for run in runs]
    cards = [read_card(folder) for folder in folders]
    tests = []
    outputs = {}
    for run, folder, card in zip(runs, folders, cards, strict=True):
        test, hypotheses = read_texts(folder, card)
        tests.append(test)
        outputs[run.path] = hypotheses

    first_run = runs[0]
    first_card = cards[0]
    external, missing_notes = _external_scores(runs, folders, cards)
    ignored = []
    all_notes = []
    for run, card in zip(runs[1:], cards[1:], strict=True):
        differences = score_differences(first_card, card)
        message = f"{first_run.path} and {run.path} on {name}: {'; '.join(differences)}"
        if card.num_sentences != first_card.num_sentences:
            remedy = "run `mtformer eval` with the same test set"
            raise DataError(f"{message}; only translations of the same lines can be compared; {remedy}")
        if differences and not force:
            remedy = "--force compares them anyway, with the references and metrics of the first run"
            raise DataError(f"{message}; {remedy}")
        if differences:
            ignored.append(message)
        all_notes += [f"{first_run.name} and {run.name}: {note}" for note in notes(first_card, card)]

    for run, card in zip(runs, cards, strict=True):
        if _has_other_weights(run, card):
            all_notes.append(f"{run.name}: scores of other weights than its current ones; run `mtformer eval`")

    first_test = tests[0]
    return Material(
        name=name,
        sources=first_test.sources,
        references=first_test.references,
        evaluation=first_card.evaluation,
        outputs=outputs,
        notes=all_notes + missing_notes,
        ignored=ignored,
        external=external,
    )


def _external_scores(
    runs: Sequence[Run], folders: Sequence[Path], cards: Sequence[ScoreCard]
) -> tuple[list[ExternalScores], list[str]]:
    """Return the scores by other programs that all runs have, and a note about each metric that some runs lack."""
    scores_of: dict[str, dict[Path, Score]] = {}
    for run, card in zip(runs, cards, strict=True):
        for score in card.scores:
            if score.name not in METRICS:
                scores_of.setdefault(score.name, {})[run.path] = score

    found = []
    missing_notes = []
    lines_of = {}
    for run, folder, card in zip(runs, folders, cards, strict=True):
        lines_of[run.path] = read_line_scores(folder, card)
    for name, scores in scores_of.items():
        names_without = [run.name for run in runs if run.path not in scores]
        if names_without:
            missing_notes.append(f"no {name} for {', '.join(names_without)}; `mtformer eval RUN --metric` computes it")
            continue
        values = {path: score.value for path, score in scores.items()}
        of_lines = {path: lines[name] for path, lines in lines_of.items() if name in lines}
        signature = scores[runs[0].path].signature
        found.append(ExternalScores(name, signature, values, of_lines if len(of_lines) == len(runs) else None))
    return found, missing_notes


def _has_other_weights(run: Run, card: ScoreCard) -> bool:
    """Return True if a card has the scores of other weights than those that commands use for the run now."""
    metric = run.config.training.best_metric if run.config is not None else "loss"
    hashes = [checkpoint.sha256 for checkpoint in card.checkpoints]
    return are_others(RunDir(run.path), hashes, metric)


def read_files(
    hypotheses: Sequence[Path], references: Sequence[Path], sources: Path | None, evaluation: EvaluationConfig
) -> tuple[list[Run], Material]:
    """Return files of hypotheses as runs without a config, and their lines.

    Args:
        hypotheses: one file per system.
        references: one or more files of references.
        sources: the file of sources, if it is known.
        evaluation: settings of the metrics; the script of the references decides about the BLEU tokenizer `auto`.

    Raises:
        DataError: if a file is missing, or the files have different numbers of lines.
    """
    names = _distinct_names(hypotheses)
    runs = [Run(name, path) for name, path in zip(names, hypotheses, strict=True)]
    paths = [*references, *hypotheses]
    if sources is not None:
        paths.insert(len(references), sources)
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path}: is a folder; with --ref all arguments are files of hypotheses")

    lines_of = {path: read_lines(path) for path in paths}
    counts = {len(lines) for lines in lines_of.values()}
    if len(counts) > 1:
        lengths = ", ".join(f"{path} has {len(lines):,}" for path, lines in lines_of.items())
        raise DataError(f"files of unequal length: {lengths} lines; give files with the same number of lines")
    if counts == {0}:
        raise DataError(f"{references[0]}: no lines to compare; check the file")

    reference_lines = [lines_of[path] for path in references]
    if not warn_of_tokenized_references(str(references[0]), reference_lines, evaluation):
        for path in hypotheses:
            warn_of_tokenized_translations(str(path), lines_of[path])
    material = Material(
        name=references[0].name,
        sources=lines_of[sources] if sources is not None else None,
        references=reference_lines,
        evaluation=evaluation,
        outputs={path: lines_of[path] for path in hypotheses},
        notes=[],
        ignored=[],
    )
    return runs, material


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of different files or folders; raise DataError if one is given twice."""
    real_paths = [os.path.realpath(path) for path in paths]
    for path, real_path in zip(paths, real_paths, strict=True):
        if real_paths.count(real_path) > 1:
            raise DataError(f"{path}: given twice; leave one out, as a run cannot be compared with itself")
    return run_names(paths)


def _is_same_system(a: Run, b: Run) -> bool:
    if a.config is None or b.config is None:
        return False
    return not any(distinguishes(key) for key, _, _ in config_diff(a.config, b.config))


def _common_name(group: Sequence[Run]) -> str:
    """Return the common part of the run names without the seed: `deep` for `deep,seed=1` and `deep,seed=2`.

    Runs that are named only by their seeds have the name of their folder, such as that of a sweep over seeds.
    """
    names = [run.name for run in group]
    if len(group) == 1:
        return names[0]
    beginning = os.path.commonprefix(names)  # noqa: RUF071  # not paths
    rests = [name.removeprefix(beginning) for name in names]
    reversed_rests = [rest[::-1] for rest in rests]
    reversed_end = os.path.commonprefix(reversed_rests)  # noqa: RUF071
    end = reversed_end[::-1].lstrip("0123456789")  # the last digits of the seeds may agree

    beginning = re.sub(r"([-_.,/]|\b)((seed|s)[-_.=]*\d*|[-_.=,/]*)$", "", beginning)  # `,seed=` or a separator
    common_name = (beginning + end).strip("-_.,=/")
    if common_name:
        return common_name

    folders = {os.path.dirname(os.path.realpath(run.path)) for run in group}
    folder_name = os.path.basename(min(folders))
    if len(folders) == 1 and folder_name and all(SEED_NAME.fullmatch(name) for name in names):
        return folder_name
    return names[0]
