"""`mtformer eval`: scores on test sets, and the confidence of translations."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mtformer.cli import options
from mtformer.cli.decoding_options import Load
from mtformer.cli.help import INPUT_OUTPUT
from mtformer.cli.options import ToOption, optional, require_at_most_one
from mtformer.cli.output import echo, table_lines
from mtformer.config.data import DataConfig, TextFiles
from mtformer.config.loading import load_config
from mtformer.errors import ConfigError
from mtformer.files import require_text
from mtformer.hub import is_on_hub, local_path
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.evaluation.card import EvalSet, ScoreCard

SrcOption = Annotated[Path | None, optional("Source file; requires --ref.", metavar="FILE", panel=INPUT_OUTPUT)]
"""Source file of a test set."""
RefOption = Annotated[Path | None, optional("Reference file; requires --src.", metavar="FILE", panel=INPUT_OUTPUT)]
"""Reference file of a test set."""
METRIC_HELP = (
    "Another metric: NAME='COMMAND' with {src}, {hyp} and {ref} for files, or NAME of a command in your settings; see "
    "docs/metrics.md. Repeat for several."
)
"""Help of --metric."""


def evaluate(
    runs: options.EnsembleArgument,
    src: SrcOption = None,
    ref: RefOption = None,
    testset: Annotated[
        str | None, optional("sacreBLEU test set, such as wmt14/full.", metavar="NAME", panel=INPUT_OUTPUT)
    ] = None,
    to: ToOption = None,
    output: Annotated[
        Path | None, optional("Folder for the results (default: RUN/eval).", metavar="FOLDER", panel=INPUT_OUTPUT)
    ] = None,
    metric: Annotated[list[str] | None, optional(METRIC_HELP, metavar="METRIC", panel=INPUT_OUTPUT)] = None,
    calibrate: Annotated[
        bool, optional("Fit the confidence of translations to this dev set, instead of scoring it.", "--calibrate")
    ] = False,
    *,
    load: Load,
) -> None:
    """Use the test sets of the config, two files, or a test set of sacreBLEU.

    Decoding options default to the values in the run's config; see docs/decoding.md.
    """
    require_at_most_one({"--testset": testset, "--src": src})
    is_ensemble = len(runs) > 1 or len(load.checkpoint or []) > 1
    if calibrate:
        # The confidence is saved in the run, for its default weights.
        require_at_most_one({"--calibrate": calibrate, "--output": output})
        require_at_most_one({"--calibrate": calibrate, "--checkpoint": load.checkpoint})
        if is_ensemble:
            raise ConfigError("--calibrate is for one model, not for an ensemble; give one run")
        if src is None and testset is None:
            raise ConfigError("--calibrate needs a dev set; give --src and --ref, or --testset")
        require_at_most_one({"--calibrate": calibrate, "--metric": metric})
    if is_ensemble and output is None:
        raise ConfigError("the scores of an ensemble are not those of a run; give a folder for them with --output")

    from mtformer.cli.progress import line_progress
    from mtformer.evaluation.external import find_metrics

    metrics = find_metrics(metric or [])
    if is_on_hub(runs[0]) and output is None:
        raise ConfigError(f"{runs[0]}: is on the Hub; give a folder for the scores with --output")
    runs = list(map(local_path, runs))
    translator = load(runs, to)
    test_sets = find_sets(runs[0], src, ref, testset, to)
    run = RunDir.open(runs[0])
    if calibrate:
        from mtformer.experiment.calibrate import calibrate_run, report_pairs_of_dev

        calibrate_run(run, translator, test_sets, line_progress)
        report_pairs_of_dev(run, test_sets)
    else:
        from mtformer.experiment.evaluate_run import evaluate_run

        echo_scores(evaluate_run(run, translator, test_sets, output, line_progress, metrics))


def echo_scores(cards: "Mapping[Path, ScoreCard]") -> None:
    """Print a table of the scores and the signatures of the metrics to stdout, and the folders to stderr."""
    rows = [["test set", "lines"]]
    signatures: dict[str, None] = {}  # in order, each once
    for card in cards.values():
        values = [score.text for score in card.scores]
        rows.append([card.name, str(card.num_sentences), *values])
        for score in card.scores:
            signatures[f"{score.label}: {score.signature}"] = None
    first_card = next(iter(cards.values()))
    rows[0] += [score.label for score in first_card.scores]

    echo(*table_lines(rows, right=range(1, len(rows[0]))))
    echo(*signatures)
    echo("BLEU and chrF2++: 0 to 100, higher is better; TER: lower is better", err=True)
    for folder in cards:
        echo(f"hypotheses and scores: {folder}", err=True)


def find_sets(
    run: Path,
    src: Path | None = None,
    ref: Path | None = None,
    testset: str | None = None,
    to: str | None = None,
    or_dev: bool = False,
) -> "list[EvalSet]":
    """Return the test sets that the options name, or those of the config of a run.

    Args:
        run: the run.
        src: value of --src.
        ref: value of --ref.
        testset: value of --testset.
        to: value of --to.
        or_dev: return the dev sets if the config has no test set.
    """
    from mtformer.evaluation.evaluate import sacrebleu_set, source_set

    if (src is None) != (ref is None):
        raise ConfigError("--src and --ref require each other; give both")
    data = load_config(RunDir.open(run).config).config.data
    src_lang = _source_language(data, to)
    if testset is not None:
        return [sacrebleu_set(testset, f"{src_lang}-{to or data.tgt_lang}")]
    if src is not None and ref is not None:
        files = TextFiles(src=str(src), tgt=str(ref), src_lang=src_lang, tgt_lang=to)
        return [source_set(_set_name(src, ref, data), files, data)]

    test_sets = [test for test in _sets_of_config(data, or_dev) if to is None or test.tgt_lang == to]
    if not test_sets:
        language = "" if to is None else f" with target language {to}"
        raise ConfigError(f"{run}: its config has no test set{language}; give --src and --ref")
    return test_sets


def _source_language(data: DataConfig, to: str | None) -> str | None:
    """Return the source language of the first direction with this target language."""
    for src_lang, tgt_lang in data.directions:
        if tgt_lang == to:
            return src_lang
    return data.src_lang


def _set_name(src: Path, ref: Path, data: DataConfig) -> str:
    """Return the name of the test set in two files: `a-b` for a.b.en.gz.

    If it is the name of another test set of the config, `-file` is added. Raise ConfigError if the file name is not
    UTF-8, because the score card contains the name.
    """
    require_text(src)
    stem = re.sub(r"(?<=.)(\.[^.]+)?(\.(gz|xz|zst|bz2))?$", "", src.name)
    name = stem.replace(".", "-")
    known = data.test.get(name)
    if known is None:
        return name
    known_files = [getattr(known, side, None) for side in ("src", "tgt")]
    files = [os.path.abspath(path) for path in (src, ref)]
    return name if known_files == files else f"{name}-file"


def _sets_of_config(data: DataConfig, or_dev: bool) -> "list[EvalSet]":
    """Return the test sets of a config; if there are none and `or_dev`, the dev sets."""
    from mtformer.evaluation.evaluate import named_sets, source_set

    test_sets = named_sets(data.test, data)
    if not test_sets and or_dev:
        return [source_set("dev", source, data) for source in data.dev_sources]
    return test_sets
