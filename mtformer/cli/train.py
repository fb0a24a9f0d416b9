"""Commands that train: `mtformer train`, `adapt`, `distill` and `reproduce`."""

import contextlib
import logging
import os
import re
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli import options
from mtformer.cli.help import Command
from mtformer.cli.options import argument, optional, require_at_most_one
from mtformer.cli.output import clean_up_on_sigterm, echo, error_lines, log_to_file, table_lines
from mtformer.errors import ConfigError, InterruptedRunError, log
from mtformer.files import CHECKSUMS, LEFTOVER
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.config.schema import Config
    from mtformer.experiment.open_run import Resume
    from mtformer.experiment.train import Outcome


class TrainCommand(Command):
    """Command that accepts `--resume` with the optional value `auto`; any other word after it is an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after joining `--resume` and its value."""
        return super().parse_args(ctx, join_resume(args))


def join_resume(words: list[str]) -> list[str]:
    """Replace `--resume auto` with `--resume=auto`, and `--resume` alone with `--resume=newest`."""
    joined, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        after = rest[0] if rest else ""
        if word == "--":
            return [*joined, word, *rest]
        if word == "--resume" and after == "auto":
            word = f"{word}={rest.pop(0)}"
        elif word == "--resume" and re.fullmatch(r"\w+", after) and not os.path.exists(after):
            raise ConfigError(f"{word} {after}: write --resume or --resume auto")
        elif word == "--resume":
            word = "--resume=newest"
        elif word.startswith("--resume=") and word != "--resume=auto":
            raise ConfigError(f"{word}: write --resume or --resume auto")
        joined.append(word)
    return joined


COMMAND_CLASSES = {"train": TrainCommand}


def train(
    config: options.ConfigArgument,
    overrides: options.OverridesArgument = None,
    run_dir: Annotated[Path | None, optional("Run directory (default: runs/NAME for NAME.yaml).")] = None,
    resume: Annotated[
        str | None, optional("Resume from the latest checkpoint (auto: start a new run if none exists).")
    ] = None,
    overwrite: Annotated[bool, optional("Replace the existing run in the run directory.", "--overwrite")] = False,
    dry_run: Annotated[bool, optional("Check config, data and memory without training.", "--dry-run")] = False,
    verify_resume: Annotated[
        bool, optional("Test that a resumed run exactly equals an uninterrupted one.", "--verify-resume")
    ] = False,
) -> None:
    """Train a model: tokenizer, data, training, averaging, test scores.

    On SIGTERM or Ctrl-C, training saves a checkpoint and exits with 143 or 130; --resume auto starts or resumes a run.
    """
    from mtformer.config.loading import load_config
    from mtformer.experiment.resume import with_saved_defaults

    set_ranks()
    trials = {"--verify-resume": verify_resume, "--dry-run": dry_run}
    require_at_most_one({"--resume": resume, "--overwrite": overwrite, **trials})
    if (config.parent / CHECKSUMS).exists() and config.name == RunDir(config.parent).config.name:
        RunDir.open(config.parent)
    loaded = load_config(config, overrides or [])
    run_dir = run_dir or Path("runs") / config.stem
    if dry_run:
        from mtformer.cli.progress import ELAPSED, alive
        from mtformer.experiment import preflight

        with alive("check", bar_format=ELAPSED):
            rows = preflight.dry_run(loaded.config, RunDir(run_dir))
        echo(*(f"{name:<28} {value}" for name, value in rows))
    elif verify_resume:
        _verify_resume(loaded.config)
    else:
        command = ["mtformer", "train", str(config), *(overrides or [])]
        command += ["--run-dir", str(run_dir), "--resume", *(["auto"] if resume == "auto" else [])]
        is_resume: Resume = "auto" if resume == "auto" else resume is not None
        settings = with_saved_defaults(loaded, RunDir(run_dir)) if is_resume else loaded.config
        outcome = run_training(settings, run_dir, command, is_resume, overwrite)
        if outcome is not None:
            _finish(settings, run_dir)


def set_ranks() -> None:
    """If `srun` started several tasks, set the environment variables of `torchrun` from those of Slurm.

    Process 0 is on the first node of the step; it listens on a port that depends on the job.
    """
    size = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size == "1" or "RANK" in os.environ:
        return
    job = os.environ["SLURM_JOB_ID"]
    os.environ |= {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": os.environ.get("MASTER_PORT", str(20_000 + int(job) % 10_000)),
        "TORCHELASTIC_RUN_ID": job,  # PyTorch recognizes distributed processes by this variable
    }


def first_host(nodes: str) -> str:
    """Return the first name in a list of Slurm's form: gpu03 of gpu[03-05,9],login."""
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    assert found is not None, "Slurm names at least one node"
    return "".join(part or "" for part in found.groups())


def run_training(
    config: "Config", run_dir: Path, command: list[str], resume: "Resume", overwrite: bool = False
) -> "Outcome | None":
    """Train with a progress bar and a log file; return None in processes other than the first one of `torchrun`.

    After a signal, print `command`, which resumes the run, and exit.
    """
    from mtformer.cli.progress import TrainingProgress
    from mtformer.experiment.train import train_experiment

    run, is_main = RunDir(run_dir), os.environ.get("RANK", "0") == "0"
    if not is_main:  # only the first process started by torchrun logs
        log.setLevel(logging.ERROR)
    log_file = log_to_file(run.log) if is_main else contextlib.nullcontext()
    try:
        with log_file, TrainingProgress() as progress:
            outcome = train_experiment(config, run, progress, resume, overwrite)
    except InterruptedRunError as stopped:
        if is_main:
            how = "in several processes, as before, " * (os.environ.get("WORLD_SIZE", "1") != "1")
            echo(f"stopped at step {stopped.step}, checkpoint saved; resume {how}with: {shlex.join(command)}", err=True)
        raise typer.Exit(128 + stopped.signal_number) from None
    if not is_main:
        return None
    position = outcome.position
    word = "already" if outcome.was_finished else "done"
    steps = f"{position.step} of {outcome.max_steps}"
    echo(f"{word} at step {steps} ({position.seconds / 60:.1f} minutes): {run_dir}", err=True)
    return outcome


def _finish(config: "Config", run_dir: Path) -> None:
    """Fit the confidence of a finished run, score its test sets, write its report, and print the next steps."""
    from mtformer.cli.eval import calibrate_on_dev, evaluate_sets
    from mtformer.cli.runs import report
    from mtformer.config.loading import load_config
    from mtformer.decoding.translator import Translator
    from mtformer.decoding.weights import default_weights
    from mtformer.evaluation.evaluate import named_sets

    default = default_weights(RunDir(run_dir), config.training.best_metric)
    if default is not None and default.text:
        echo(f"{run_dir}: commands use the {default.text}", err=True)
    data = load_config(RunDir.open(run_dir).config).config.data
    if data.dev or data.test:
        translator = Translator.load(run_dir, device=config.training.device)
        calibrate_on_dev(RunDir(run_dir), translator)
    if data.test:
        evaluate_sets(run_dir, named_sets(data.test, data), translator)
    if config.training.report:
        report([run_dir])
    commands = [["translate", str(run_dir)], ["export", str(run_dir)], ["runs", str(run_dir.parent)]]
    echo(f"run directory: {run_dir}", "next steps:", *(f"  mtformer {shlex.join(one)}" for one in commands), err=True)


def _verify_resume(config: "Config") -> None:
    from mtformer.experiment.verify import verify_resume

    clean_up_on_sigterm()
    compared = verify_resume(config)
    header = ("compared", "tensors", "numbers", "equal")
    counts = [(f"{part.num_tensors:,}", f"{part.num_numbers:,}") for part in compared]
    rows = [(one.what, *some, "no" if one.difference else "yes") for one, some in zip(compared, counts, strict=True)]
    echo(*table_lines([header, *rows]))
    different = [f"{part.what}: {part.difference.name}" for part in compared if part.difference]
    if different:
        error_lines(f"the resumed run differs from the uninterrupted one; first difference: {different[0]}")
        raise typer.Exit(1)


def adapt(
    run: Annotated[Path, argument("Run directory or bundle to adapt.")],
    overrides: options.OverridesArgument = None,
    *,
    train: Annotated[list[str], optional("New text: TSV, JSONL, TMX or SRC,TGT; repeat for more.", metavar="FILE")],
    run_dir: Annotated[Path, optional("Run directory of the adapted model.", metavar="NEW")],
    dev: Annotated[
        str | None, optional("Dev set of the new text (default: hold out some pairs).", metavar="FILE")
    ] = None,
    old_dev: Annotated[
        str | None, optional("Dev set of the old text (default: those of RUN).", "--old-dev", metavar="FILE")
    ] = None,
    max_loss: Annotated[float, optional("Maximum loss of BLEU on the old dev set.", "--max-loss", min=0.0)] = 0.3,
) -> None:
    """Fine-tune a model on new text without forgetting what it knows.

    About 70 percent of each epoch repeats the training corpora of RUN. If they cannot be read, RUN translates the new
    sources instead. Then the weights between old and new that gain most chrF on the new dev set, and lose at most
    --max-loss on the old one, become the weights of NEW. The same command resumes an interrupted adaptation.
    """
    from tqdm import tqdm

    from mtformer.cli.eval import calibrate_on_dev
    from mtformer.decoding.translator import Translator
    from mtformer.experiment.adapt import SHARES, adaptation_config, choose_weights

    new = RunDir(run_dir)
    _require_new("adapt", new)
    config = adaptation_config(run, train, dev, old_dev, new, overrides or [])
    run_training(config, run_dir, ["mtformer", *sys.argv[1:]], "auto")
    log.info("choosing weights between the old and the new ones; if this is interrupted, repeat the command")
    with tqdm(total=len(SHARES), desc="interpolate", disable=None, leave=False) as bar:
        points, chosen = choose_weights(new, config, max_loss, bar.update)
    calibrate_on_dev(new, Translator.load(run_dir, device=config.training.device))
    rows = [["dev set, score", "before", "after", f"chosen ({chosen.share:.0%} of the change)"]]
    shown = (points[0], points[-1], chosen)
    rows.append(["new, chrF2++", *(f"{one.new_chrf:.2f}" for one in shown)])
    rows.append(["new, BLEU", *(f"{one.new:.2f}" for one in shown)])
    if chosen.old is not None:
        rows.append(["old, BLEU", *(f"{one.old:.2f}" for one in shown)])
    echo(*table_lines(rows, right=[1, 2, 3]))
    echo(f"translate with: mtformer translate {run_dir}", err=True)


def distill(
    runs: options.EnsembleArgument,
    *,
    config: Annotated[Path, optional("Config of the student, with its training data.", "--config")],
    mono: Annotated[list[Path] | None, optional("More text to translate; repeat for more files.", "--mono")] = None,
    run_dir: Annotated[Path | None, optional("Run directory of the student (default: runs/NAME).")] = None,
    on: options.OnOption = None,
) -> None:
    """Train a student on translations of its training data by a teacher, or by several as an ensemble.

    Of the five best translations of a line, the one most similar to the reference is used. The student trains on them
    and on its own data; then both models are compared on the test sets. The same command resumes an interrupted one.
    """
    from tqdm import tqdm

    from mtformer.cli.eval import calibrate_on_dev
    from mtformer.cluster.workers import use_ray
    from mtformer.config.loading import load_config
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.evaluate import evaluate, named_sets
    from mtformer.experiment.distill import distilled_config, load_teachers

    run = RunDir(run_dir or Path("runs") / config.stem)
    _require_new("distill", run)
    student = load_config(config).config
    if not student.data.test:
        raise ConfigError(f"{config}: no data.test; add a test set, on which teacher and student are compared")
    sets = named_sets(student.data.test, student.data)
    Translator.load(runs, device=student.training.device).with_decoding(student.decoding)  # refused before training
    with use_ray(on), tqdm(desc="translate", unit="line", disable=None, leave=False) as bar:
        distilled = distilled_config(partial(load_teachers, runs, student), student, mono or [], run, bar.update)
    run_training(distilled, run.path, ["mtformer", *sys.argv[1:]], "auto")
    rows = [["test set", "model", "BLEU", "chrF2++", "lines/s", "parameters"]]
    with tempfile.TemporaryDirectory() as folder:
        for name, models in (("teacher", runs), ("student", [run.path])):
            translator = Translator.load(models, device=student.training.device)
            translator = translator.into(student.data.tgt_lang).with_decoding(student.decoding)
            size = sum(parameter.numel() for model in translator.models for parameter in model.parameters())
            for one in sets:
                target = run.evaluation(one.name) if name == "student" else Path(folder, one.name)
                card = evaluate(translator, one, student.evaluation, target)
                scores = [f"{score.value:.2f}" for score in card.scores[:2]]
                speed = f"{len(one.sources) / card.seconds:,.0f}"
                rows.append([one.name, name, *scores, speed, f"{size:,}" if size else "-"])  # -: a CTranslate2 export
    calibrate_on_dev(run, translator)
    echo(*table_lines(rows, right=range(2, 6)))
    echo(f"translate with: mtformer translate {run.path}", err=True)


def _require_new(command: str, run: RunDir) -> None:
    """Raise ConfigError if the command was started by `torchrun`, or the folder has something other than its run."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"{command} uses one process; run it without torchrun")
    names = os.listdir(run.path) if run.path.is_dir() else [""] * run.path.exists()
    other = run.corpus / {"adapt": "teacher.json", "distill": "made_from.json"}[command]
    if other.exists() or not (run.corpus.is_dir() or all(map(LEFTOVER.fullmatch, names))):
        raise ConfigError(f"{run.path}: already exists; choose another folder for --run-dir")


def reproduce(
    run: Annotated[Path, argument("Run directory.")],
    steps: Annotated[
        int | None, optional("Number of steps to repeat (default: 50, or more to reach the first log line).", min=1)
    ] = None,
) -> None:
    """Repeat the first steps of a run from its config and compare the losses exactly.

    The tokenizer, data and model are created again in a temporary folder. The exit code is 0 if all values are equal
    and 1 otherwise; the output then shows the first difference, and changes to data, versions and device.
    """
    from mtformer.cli.progress import TrainingProgress
    from mtformer.experiment import verify

    opened = RunDir.open(run)
    num_steps = verify.steps_to_reproduce(opened, steps)
    clean_up_on_sigterm()
    try:
        with TrainingProgress() as progress:
            found = verify.reproduce(opened, num_steps, progress)
    except InterruptedRunError as stopped:
        echo(f"stopped at step {stopped.step} of {num_steps}", err=True)
        raise typer.Exit(128 + stopped.signal_number) from None
    echo(*(f"changed since: {what}: {then} -> {now}" for what, then, now in found.environment or ()), err=True)
    if found.first is None:
        echo(f"steps 1 to {num_steps}: exactly equal ({found.num_figures} values in {found.num_records} records)")
        return
    first = found.first
    echo(f"{first.name} was {first.then!r} and is now {first.now!r}")
    if found.environment:
        why = "the changes since the run are listed above"
    elif found.environment is None:
        why = "the run has no checkpoint that records its data, versions and device"
    elif found.is_deterministic:
        why = "data, versions and device are the same; its config may have been edited, or changed by --resume"
    else:
        why = "data, versions and device are the same, but training.deterministic is off"
    error_lines(f"{run} was not reproduced: {why}")
    raise typer.Exit(1)
