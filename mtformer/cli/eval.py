"""`mtformer eval`, which also runs at the end of training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mtformer.cli.options import (
    BackendOption,
    CheckpointsOption,
    CometOption,
    DeviceOption,
    EnsembleArgument,
    PrecisionOption,
    ToOption,
    optional,
    require_at_most_one,
)
from mtformer.cli.output import echo, printable, table_lines
from mtformer.errors import ConfigError

if TYPE_CHECKING:
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.card import EvalSet, ScoreCard


def evaluate(
    runs: EnsembleArgument,
    src: Annotated[Path | None, optional("Source file; requires --ref.")] = None,
    ref: Annotated[Path | None, optional("Reference file; requires --src.")] = None,
    testset: Annotated[str | None, optional("sacreBLEU test set, such as wmt14/full.")] = None,
    to: ToOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    backend: BackendOption = None,
    checkpoint: CheckpointsOption = None,
    output: Annotated[Path | None, optional("Folder for the results (default: RUN/eval).")] = None,
    comet: CometOption = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Score a model: BLEU, chrF2++ and TER on the config's test sets, two files, or a sacreBLEU test set.

    Decoding options default to the values in the run's config; see docs/decoding.md.
    """
    if (src is None) != (ref is None):
        raise ConfigError("--src and --ref require each other; give both")
    require_at_most_one({"--testset": testset, "--src": src})
    from mtformer.decoding.translator import Translator

    translator = Translator.load(runs, checkpoint or None, device, precision, backend)
    translator = translator.into(to).with_decoding(**settings)
    evaluate_sets(runs[0], _sets(runs[0], src, ref, testset, to), translator, output, comet)


def evaluate_sets(
    run: Path,
    sets: "list[EvalSet]",
    translator: "Translator",
    output: Path | None = None,
    comet_model: str | None = None,
) -> None:
    """Translate and score each test set, save the results, and print a table of the scores to stdout."""
    from tqdm import tqdm

    from mtformer.config.loading import load_config
    from mtformer.evaluation.evaluate import evaluate as evaluate_one
    from mtformer.run_dir import RunDir

    opened = RunDir.open(run)
    config = load_config(opened.config).config
    comet = None
    if comet_model is not None:
        from mtformer.evaluation.comet import Comet

        comet = Comet(comet_model, translator.engine.device)
    cards = {}
    for one in sets:
        folder = output / one.name if output is not None else opened.evaluation(one.name)
        with tqdm(total=len(one.sources), desc=printable(one.name), unit="line", disable=None, leave=False) as bar:
            cards[folder] = evaluate_one(translator, one, config.evaluation, folder, progress=bar.update, comet=comet)
    _print_table(cards)


def _sets(run: Path, src: Path | None, ref: Path | None, testset: str | None, to: str | None) -> "list[EvalSet]":
    from mtformer.config.data import TextFiles
    from mtformer.config.loading import load_config
    from mtformer.evaluation.evaluate import config_sets, sacrebleu_set, source_set
    from mtformer.run_dir import RunDir

    data = load_config(RunDir.open(run).config).config.data
    if testset is not None:
        return [sacrebleu_set(testset, f"{data.src_lang}-{to or data.tgt_lang}")]
    if src is not None and ref is not None:
        return [source_set(src.name.split(".")[0], TextFiles(src=str(src), tgt=str(ref), tgt_lang=to), data)]
    if not data.test:
        raise ConfigError(f"{run}: its config has no test set; give --src and --ref, or --testset")
    return config_sets(data)


def _print_table(by_folder: "dict[Path, ScoreCard]") -> None:
    cards = list(by_folder.values())
    rows = [["test set", "lines", *(score.label for score in cards[0].scores)]]
    for card in cards:
        values = [f"{score.value:.{4 if score.name == 'comet' else 2}f}" for score in card.scores]
        rows.append([card.name, str(card.num_sentences), *values])
    echo(*table_lines(rows, right=range(1, len(rows[0]))))
    echo(*(f"{score.label}: {score.signature}" for score in cards[0].scores))
    echo(*(f"hypotheses and scores: {folder}" for folder in by_folder), err=True)
