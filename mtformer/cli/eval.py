"""`mtformer eval`, which also runs at the end of training, `mtformer score` and `mtformer exam`."""

import json
import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from mtformer.cli import options
from mtformer.cli.decoding_options import Load
from mtformer.cli.line_files import parallel_lines
from mtformer.cli.options import ToOption, argument, optional, require_at_most_one
from mtformer.cli.output import echo, for_terminal, printable, require_no_input, table_lines
from mtformer.config.data import TextFiles
from mtformer.config.loading import load_config
from mtformer.errors import ConfigError, DataError, explain_write_errors, log
from mtformer.files import FORMAT, write_json
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.decoding.lines.translation import Scored, Translation
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.card import EvalSet
    from mtformer.evaluation.exam import Row


def evaluate(
    runs: options.EnsembleArgument,
    src: Annotated[Path | None, optional("Source file; requires --ref.")] = None,
    ref: Annotated[Path | None, optional("Reference file; requires --src.")] = None,
    testset: Annotated[str | None, optional("sacreBLEU test set, such as wmt14/full.")] = None,
    to: ToOption = None,
    output: Annotated[Path | None, optional("Folder for the results (default: RUN/eval).")] = None,
    calibrate: Annotated[bool, optional("Fit the confidence of translations to this set.", "--calibrate")] = False,
    *,
    load: Load,
) -> None:
    """Score a model: BLEU, chrF2++ and TER on the config's test sets, two files, or a sacreBLEU test set.

    Decoding options default to the values in the run's config; see docs/decoding.md.
    """
    require_at_most_one({"--testset": testset, "--src": src})
    for name, value in {"--output": output, "--checkpoint": load.checkpoint}.items():  # confidence is for the run
        require_at_most_one({"--calibrate": calibrate, name: value})
    is_ensemble = len(runs) > 1 or len(load.checkpoint or []) > 1
    if calibrate and is_ensemble:
        raise ConfigError("--calibrate is for one model, not for an ensemble; give one run")
    if is_ensemble and output is None:
        raise ConfigError("the scores of an ensemble are not those of a run; give a folder for them with --output")
    if calibrate and not src and not testset:
        raise ConfigError("--calibrate needs a dev set; give --src and --ref")
    translator, sets = load(runs, to), _find_sets(runs[0], src, ref, testset, to)
    if calibrate:
        calibrate_run(RunDir.open(runs[0]), translator, sets)
    else:
        evaluate_sets(runs[0], sets, translator, output)


def calibrate_run(run: RunDir, translator: "Translator", sets: "list[EvalSet]") -> None:
    """Fit the confidence of the translations of a run to dev sets, and save it in the run."""
    from mtformer.decoding.lines.confidence import GOOD_CHRF, MIN_PAIRS, fit, write_calibration
    from mtformer.evaluation.scores import sentence_chrf

    if (num_pairs := sum(len(one.sources) for one in sets)) < MIN_PAIRS:
        raise DataError(f"confidence needs at least {MIN_PAIRS} dev pairs, not {num_pairs}")
    sources, translations, chrf = list[str](), list["Translation"](), list[float]()
    with tqdm(total=num_pairs, desc="calibrate", disable=None, leave=False) as bar:
        for one in sets:
            found = translator.into(one.tgt_lang).translate(one.sources, token_scores=True, progress=bar.update)
            sources, translations = [*sources, *one.sources], [*translations, *found]
            chrf += sentence_chrf([best.text for best in found], one.references[0])
    write_calibration(run.confidence, fit(sources, translations, chrf))
    share = sum(score >= GOOD_CHRF for score in chrf) / len(chrf)
    log.info("confidence fitted to %d pairs; %.0f%% have a chrF2++ of at least %g", len(chrf), 100 * share, GOOD_CHRF)


def calibrate_on_dev(run: RunDir, translator: "Translator") -> None:
    """Fit the confidence of a run to its own dev data, unless it has one; if that is not possible, log why."""
    from mtformer.evaluation.evaluate import named_sets

    data = load_config(run.config).config.data
    sources = {str(number): source for number, source in enumerate(data.dev_sources)}
    try:
        if sources and not run.confidence.exists():  # it may be that of `eval --calibrate`
            calibrate_run(run, translator, named_sets(sources, data))
    except DataError as error:
        log.info("no confidence was fitted: %s", error)


def evaluate_sets(run: Path, sets: "list[EvalSet]", translator: "Translator", output: Path | None = None) -> None:
    """Translate and score each test set, save the results, and print a table of the scores to stdout."""
    from mtformer.decoding.weights import is_default
    from mtformer.evaluation.card import read_card, score_differences
    from mtformer.evaluation.evaluate import evaluate as evaluate_one

    opened = RunDir.open(run)
    config = load_config(opened.config).config
    cards = {}
    if output is None and not is_default(opened, translator.weights, config.training.best_metric):
        log.warning("%s: `compare`, `runs` and `report` show the scores of these weights now; see --output", run)
    folders = [output / one.name if output is not None else opened.evaluation(one.name) for one in sets]
    for folder in folders:  # checked before the translation, which takes long
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK)):
            raise DataError(f"{folder}: cannot be written; name another folder with --output")
    for one, folder in zip(sets, folders, strict=True):
        earlier = None
        with suppress(DataError):  # no scores, or damaged ones
            earlier = read_card(folder)
        with tqdm(total=len(one.sources), desc=printable(one.name), unit="line", disable=None, leave=False) as bar:
            cards[folder] = evaluate_one(translator, one, config.evaluation, folder, progress=bar.update)
        if earlier is not None and (changed := score_differences(earlier, cards[folder])):
            log.warning("%s: replaced scores with other settings (%s)", folder, "; ".join(changed))
    rows = [["test set", "lines", *(score.label for score in next(iter(cards.values())).scores)]]
    rows += [
        [card.name, str(card.num_sentences), *(f"{score.value:.2f}" for score in card.scores)]
        for card in cards.values()
    ]
    echo(*table_lines(rows, right=range(1, len(rows[0]))))
    echo(*dict.fromkeys(f"{score.label}: {score.signature}" for card in cards.values() for score in card.scores))
    echo(*(f"hypotheses and scores: {folder}" for folder in cards), err=True)


def _find_sets(
    run: Path, src: Path | None, ref: Path | None, testset: str | None, to: str | None, or_dev: bool = False
) -> "list[EvalSet]":
    """Return the test sets that the options name, or those of the config; without any, the dev set if `or_dev`."""
    from mtformer.evaluation.evaluate import named_sets, sacrebleu_set, source_set

    if (src is None) != (ref is None):
        raise ConfigError("--src and --ref require each other; give both")
    data = load_config(RunDir.open(run).config).config.data
    src_lang = next((src_lang for src_lang, tgt_lang in data.directions if tgt_lang == to), data.src_lang)
    if testset is not None:
        return [sacrebleu_set(testset, f"{src_lang}-{to or data.tgt_lang}")]
    if src is not None and ref is not None:
        files = TextFiles(src=str(src), tgt=str(ref), src_lang=src_lang, tgt_lang=to)
        name = re.sub(r"(?<=.)(\.[^.]+)?(\.(gz|xz|zst))?$", "", src.name).replace(".", "-")  # "a-b" for a.b.en.gz
        known, own = data.test.get(name), [os.path.abspath(path) for path in (src, ref)]
        is_other = known is not None and [getattr(known, side, None) for side in ("src", "tgt")] != own
        return [source_set(name + "-file" * is_other, files, data)]
    found = named_sets(data.test, data) or [source_set("dev", source, data) for source in data.dev_sources if or_dev]
    sets = [one for one in found if to in (None, one.tgt_lang)]
    if not sets:
        which = "no test set" + f" with target language {to}" * (to is not None)
        raise ConfigError(f"{run}: its config has {which}; give --src and --ref")
    return sets


def score(
    run: Annotated[Path, argument("Run directory or bundle.")],
    src: Annotated[Path, argument("Source file: plain, .gz, .xz or .zst.", metavar="SOURCE")],
    tgt: Annotated[Path, argument("File with one translation per source line.", metavar="TARGET")],
    tokens: Annotated[bool, optional("Also print each token with its log-probability.", "--tokens")] = False,
    as_json: Annotated[bool, optional("Print one JSON object per line, with the tokens.", "--json")] = False,
    to: ToOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = None,
    checkpoint: options.CheckpointsOption = None,
) -> None:
    """Print the log-probability (in nats) of given translations to stdout, and the perplexity to stderr."""
    from mtformer.decoding.translator import Translator

    total, num_tokens, num_long = 0.0, 0, 0
    with parallel_lines([src, tgt]) as lines:
        translator = Translator.load(run, checkpoint or None, device, precision).into(to)
        with tqdm(desc="score", unit="line", total=lines.total, disable=None, leave=False) as bar:
            for sources, targets in lines.blocks():
                for one in translator.score(sources, targets, progress=bar.update):
                    sys.stdout.write(for_terminal(_score_line(one, tokens, as_json), sys.stdout) + "\n")
                    num_long += one is None
                    if one is not None:
                        total += one.log_probability
                        num_tokens += len(one.pieces)
                sys.stdout.flush()
        num_lines = lines.num_lines
    if num_long:
        log.warning("%d of %d lines have more tokens than the model has positions; score: nan", num_long, num_lines)
    if num_tokens:
        perplexity = math.exp(-total / num_tokens)
        log.info("%d lines, %d tokens, log-probability %.4f, perplexity %.4f", num_lines, num_tokens, total, perplexity)


def _score_line(one: "Scored | None", tokens: bool, as_json: bool) -> str:
    if one is None:
        return json.dumps({"log_probability": None}) if as_json else "nan"
    if as_json:
        scores = [round(value, 6) for value in one.token_log_probabilities]
        values = {"log_probability": one.log_probability, "pieces": one.pieces, "token_log_probabilities": scores}
        return json.dumps(values, ensure_ascii=False)
    pieces = "".join(f" {p}:{v:.4f}" for p, v in zip(one.pieces, one.token_log_probabilities, strict=True))
    return f"{one.log_probability:.6f}" + (f"\t{pieces[1:]}" if tokens else "")


def exam(
    runs: Annotated[list[Path], argument("Run directory or bundle; several are compared.")],
    src: Annotated[Path | None, optional("Source file; requires --ref.")] = None,
    ref: Annotated[Path | None, optional("Reference file; requires --src.")] = None,
    to: ToOption = None,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines of the test set, from the first.")] = 200,
    limits: Annotated[Path | None, optional("YAML file with limits of the values.")] = None,
    json_file: Annotated[Path | None, optional("File for the card as JSON.", "--json")] = None,
    *,
    load: Load,
) -> None:
    """Test the behavior of a model on perturbed lines: capitals, typos, URLs, long lines and others.

    The lines come from --src and --ref, the first test set of the config, or its dev set. The exit code is 1 if a limit
    is broken and 0 otherwise; see docs/experiments.md.
    """
    from mtformer.evaluation.exam import ROWS, broken_limits, read_limits, take_exam

    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"{json_file}: is a folder; name a file")
    require_no_input(json_file, src, ref, limits)
    accepted = read_limits(limits) if limits is not None else []
    runs = list(dict.fromkeys(runs))
    translators = [load([run], to) for run in runs]
    test = _find_sets(runs[0], src, ref, None, to, or_dev=True)[0]
    translators = [one.into(test.tgt_lang) for one in translators]
    cards = dict[str, dict[str, "Row"]]()
    for run, translator in zip(runs, translators, strict=True):
        of_run = take_exam(translator, test, lines)
        with tqdm(of_run, printable(str(run)), len(ROWS), unit="row", disable=None, leave=False) as bar:
            cards[str(run)] = dict(bar)
    broken = {name: broken_limits(accepted, rows) for name, rows in cards.items()}
    for name, rows in cards.items():
        if not any(row["unaligned"] is not None for row in rows.values()):
            log.warning("%s: the translator returned no attention, so the column unaligned is blank", name)
        for row, column, _ in accepted:
            if rows[row][column] is None:
                log.warning("%s: the limit %s.%s is not checked, because the cell is blank", name, row, column)
        for one in broken[name]:
            echo("{}: {row}.{column} is {value:g}, but its limit is {limit:g}".format(name, **one), err=True)
    hashes = [one.weight_hashes for one in translators]
    of_runs = zip(cards.items(), hashes, strict=True)
    exams = [{"run": name, "weights": its, "rows": rows, "broken": broken[name]} for (name, rows), its in of_runs]
    values = {"format": FORMAT, "test_set": test.name, "exams": exams}
    try:
        if json_file is not None:
            with explain_write_errors(f"{json_file}:", "name another file"):
                write_json(json_file, values, indent=2)
    finally:  # after the file, because the reader of a pipe may end before the last line
        echo(*_table(cards))
    if any(broken.values()):
        raise typer.Exit(1)


def _table(cards: "dict[str, dict[str, Row]]") -> list[str]:
    """Return the cards as one table; with several runs, each row has one line per run."""
    from mtformer.evaluation.exam import COLUMNS, ROWS

    table = [["row", "run", *COLUMNS]]
    for name in ROWS:
        for run, rows in cards.items():
            values = ["-" if value is None else f"{round(value, 1) + 0.0:.1f}" for value in rows[name].values()]
            table.append([name, run, f"{rows[name]['lines']:.0f}", *values[1:]])
    shown = table if len(cards) > 1 else [[name, *values] for name, _, *values in table]
    return table_lines(shown, right=range(len(shown[0]) - len(COLUMNS), len(shown[0])))
