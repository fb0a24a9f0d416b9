"""Sections of gpu.py that check results: equality with the CPU, resuming, and training and search on a real corpus."""

import copy
import gzip
import itertools
import math
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import decode_speed
import peers
import torch
from decode_speed import BEAMS
from gpu_sections import Bench, Figure, Measurements, kftt_batches
from torch import Tensor

from mtformer.config.loading import load_config
from mtformer.config.schema import Config, EvaluationConfig, TrainingConfig
from mtformer.data.demo import write_demo
from mtformer.decoding.translator import Translator
from mtformer.device import DTYPES
from mtformer.errors import InterruptedRunError
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.verify import StopAt, compare_runs, train_part
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.training.history import read_records
from mtformer.training.step import TrainingStep

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CHECK = {True: "passed", False: "FAILED"}
ALLOWED = {"fp32": 0.001, "bf16": 0.1, "fp16": 0.02}
"""Maximum relative difference of the gradient from fp32 on a CPU; that of the loss is a tenth of it."""
MIN_EQUAL = 0.9
"""Minimum share of equal translations in fp32. Random weights give many tokens similar scores."""
MAX_TOKENS = 1024
"""Maximum number of padded tokens on the CPU."""
NUM_STEPS, SAVED_EVERY, KILLED_AT = 40, 10, 25


# ---- equality with the CPU ------------------------------------------------------------------------------------------


def equality(bench: Bench) -> Measurements:
    """Compare loss, gradient and translations of a base model with random weights to fp32 on the CPU."""
    on_cpu = cache(partial(compute, bench, "cpu", "fp32"))
    for precision in bench.precisions:
        yield {"kind": "equality", "precision": precision}, partial(compare, bench, precision, on_cpu)


def compute(bench: Bench, device: str, precision: str) -> tuple[float, Tensor, list[list[list[int]]]]:
    """Return the loss per token, its gradient (on the CPU), and the translations with each search."""
    size, _ = bench.scale.sizes["base"]
    batch = kftt_batches(bench.scale, size, bench.scale.batch_tokens[0])[0].split(MAX_TOKENS)[0].to(device)
    torch.manual_seed(1)
    # With tied embeddings, random weights would repeat the first token.
    config = peers.model_config(size, dropout=0.0).model_copy(update={"tie_embeddings": "none"})
    model = Transformer(config, size.vocab_size, size.vocab_size)
    trained = Transformer(config, size.vocab_size, size.vocab_size, compute_dtype=DTYPES[precision])
    trained.load_state_dict(model.state_dict())
    step = TrainingStep(trained.to(device), TrainingConfig(compile="never"))
    step.model.train()
    scale = 1024.0 if precision == "fp16" else 1.0  # as in training
    loss = step.loss(batch)[0] / batch.num_tgt_tokens
    (loss * scale).backward()
    gradient = torch.cat([one.grad.flatten() for one in step.model.parameters()]).cpu().double() / scale
    translations = []
    for num_beams in BEAMS.values():
        workload = size, precision, num_beams, bench.scale.target_tokens, device
        decode = decode_speed.mtformer_system(*workload, copy.deepcopy(model))
        with torch.inference_mode():
            translations.append([found.tokens for found in decode(batch.src_BS, batch.src_lengths_B)])
    return loss.item(), gradient, translations


def compare(bench: Bench, precision: str, on_cpu: Callable[[], tuple[float, Tensor, list[list[list[int]]]]]) -> Figure:
    """Compare results on the device to those on the CPU."""
    expected_loss, expected, here = on_cpu()
    loss, gradient, there = compute(bench, bench.device, precision)
    differences = abs(loss / expected_loss - 1), float((gradient - expected).norm() / expected.norm())
    shares = [sum(map(list.__eq__, *sides)) / len(sides[0]) for sides in zip(here, there, strict=True)]
    is_close = max(10 * differences[0], differences[1]) <= ALLOWED[precision]
    return {
        "loss, nats per token": loss,
        "relative difference of the loss": differences[0],
        "of the gradient (norm)": differences[1],
        "allowed for the gradient": ALLOWED[precision],
        **{f"% equal translations, {name}": 100 * share for name, share in zip(BEAMS, shares, strict=True)},
        "check": CHECK[is_close and (precision != "fp32" or min(shares) >= MIN_EQUAL)],
    }


# ---- runs -----------------------------------------------------------------------------------------------------------


class Watch(StopAt):
    """`Progress` that ends a run: with SIGTERM after a deadline, or with SIGKILL after a step."""

    def __init__(self, deadline: float = math.inf, killed_at: int | None = None) -> None:
        super().__init__(None)
        self.deadline, self.killed_at, self.started = deadline, killed_at, math.inf

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """End the run if it is time to; `started` is the time at the end of the first step."""
        self.started = min(self.started, time.time())
        if step == self.killed_at or time.time() > self.deadline:
            os.kill(os.getpid(), signal.SIGKILL if step == self.killed_at else signal.SIGTERM)


def make_config(bench: Bench, name: str, folder: Path, data: Sequence[str], precision: str, *settings: str) -> Config:
    """Return a config of the repository with other data (sources of train and dev), the base model and settings."""
    [train, dev], (size, dropout) = data, bench.scale.sizes["base"]
    overrides = [
        *(f"data.train=[{train}]", f"data.dev=[{dev}]", "data.test={}", f"data.cache_dir={folder / 'cache'}"),
        *(f"training.device={bench.device}", f"training.precision={precision}", "training.compile=never"),
        *("training.average_last=0", *settings),
    ]
    config = load_config(CONFIGS / name, overrides).config
    return config.model_copy(update={"model": peers.model_config(size, dropout)})


def resuming(bench: Bench) -> Measurements:
    """Kill a run and resume it, and compare it with an uninterrupted one; also in a process group of one process."""
    first, last = bench.precisions[1], bench.precisions[-1]
    for precision in bench.precisions[1:]:
        about = {"kind": "resuming", "weights": "without process group", "precision": precision}
        yield about, partial(measure_resuming, bench, precision)
    about = {"kind": "resuming", "weights": "replicated (DDP)", "precision": first}
    yield about, partial(measure_in_process_group, bench, first)
    about = {"kind": "resuming", "weights": "sharded (FSDP2)", "precision": last}
    yield about, partial(measure_in_process_group, bench, last, "training.sharded=true")


def measure_in_process_group(bench: Bench, precision: str, *settings: str) -> Figure:
    """Call `measure_resuming` as the only process of a `torchrun`, so that the model is replicated or sharded."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    torchrun |= {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "gpu"}
    os.environ |= torchrun
    try:
        return measure_resuming(bench, precision, *settings)
    finally:
        for name in torchrun:
            del os.environ[name]


def measure_resuming(bench: Bench, precision: str, *settings: str) -> Figure:
    """Train the base model on the demo corpus in deterministic mode: one run is killed and resumed, another is not."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = write_demo(folder / "demo")
        sources = f"{{src: {files['train.en']}, tgt: {files['train.de']}}}", ""
        steps = f"training.max_steps={NUM_STEPS}", f"training.validate_every={SAVED_EVERY}", "training.log_every=5"
        config = make_config(bench, "demo.yaml", folder, sources, precision, "training.deterministic=true", *steps,
                             *settings)  # fmt: skip
        killed, whole = RunDir(folder / "killed"), RunDir(folder / "whole")
        arguments = config, killed.path, None, Watch(killed_at=KILLED_AT)
        process = multiprocessing.get_context("spawn").Process(target=train_part, args=arguments, daemon=True)
        process.start()
        process.join(max(0.0, bench.deadline - time.time()))
        process.kill()
        if killed.steps()[-1:] != [KILLED_AT - KILLED_AT % SAVED_EVERY]:
            raise RuntimeError(f"the process ended with exit code {process.exitcode} before step {KILLED_AT}")
        for run in (killed, whole):
            train_part(config, run.path, None)
        compared = compare_runs(whole, killed)
        different = [f"{part.what}: {part.difference.name}" for part in compared if part.difference is not None]
    return {
        "killed after step": KILLED_AT,
        "resumed from step": KILLED_AT - KILLED_AT % SAVED_EVERY,
        "compared at step": NUM_STEPS,
        "weights compared": next(part.num_numbers for part in compared if part.what == "weights"),
        "first difference": different[0] if different else "none",
        "check": CHECK[not different],
    }


# ---- a real corpus --------------------------------------------------------------------------------------------------


def kftt(bench: Bench) -> Measurements:
    """Train on KFTT in each 16-bit precision, and compare the precisions of search with the first of these models."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for precision, share in zip(bench.precisions[1:], (0.45, 0.6), strict=False):  # the first run prepares the data
            yield {"kind": "kftt", "precision": precision}, partial(measure_kftt, bench, folder, precision, share)
        for search, num_beams in BEAMS.items():
            in_fp32: Figure = {}
            for precision in bench.precisions:
                about = {"kind": "kftt search", "search": search, "precision": precision}
                yield about, partial(measure_search, bench, folder, num_beams, precision, in_fp32)


def measure_kftt(bench: Bench, folder: Path, precision: str, share: float) -> Figure:
    """Train for at most this share of the remaining time."""
    begin, run = time.time(), RunDir(folder / precision)
    sources = []
    for part, number in bench.scale.corpus_lines.items():
        for language in ("ja", "en"):
            with gzip.open(bench.corpus / f"{part}.{language}.gz") as file:
                (folder / f"{part}.{language}").write_bytes(b"".join(itertools.islice(file, number)))
        sources.append(f"{{src: {folder / part}.ja, tgt: {folder / part}.en}}")
    config = make_config(bench, "kftt_ja_en.yaml", folder, sources, precision, *bench.scale.corpus_settings.split())
    watch = Watch(deadline=begin + share * (bench.deadline - begin))
    bench.forget_peak()
    try:
        train_part(config, run.path, None, watch)
        stopped = "at the end"
    except InterruptedRunError:
        stopped = "by the time limit"
    records = [record for record in read_records(run.metrics) if record["kind"] == "train"]
    losses = [math.nan if record["loss"] is None else record["loss"] for record in records]
    is_finite = all(map(math.isfinite, losses))
    is_falling = len(losses) > 2 and losses[0] > losses[len(losses) // 2] > losses[-1]
    return {
        "steps": run.steps()[-1],
        "stopped": stopped,
        **{f"loss, step {record['step']}": loss for record, loss in zip(records, losses, strict=True)},
        "finite": "yes" if is_finite else "no",
        "falling": "yes" if is_falling else "no",
        "skipped steps": sum(record["skipped_steps"] for record in records),
        "peak GiB": bench.peak_gib(),
        "s to prepare": watch.started - begin,
        "s to train": time.time() - watch.started,
        "check": CHECK[is_finite and is_falling],
    }


def measure_search(bench: Bench, folder: Path, num_beams: int, precision: str, in_fp32: Figure) -> Figure:
    """Translate the dev data, and compare BLEU and lines with fp32, which is measured first."""
    translator = Translator.load(folder / bench.precisions[1], device=bench.device, precision=precision)
    translator = translator.with_decoding(beam_size=num_beams)
    sources, references = (peers.read_lines(folder / f"dev.{language}") for language in ("ja", "en"))
    lines = [translation.text for translation in translator.translate(sources)]
    bleu = score(lines, references, for_language(EvaluationConfig(), "en"), ("bleu",))[0].value
    if precision == "fp32":
        in_fp32.update(bleu=bleu, lines=lines)
    equal = sum(one == other for one, other in zip(lines, in_fp32["lines"], strict=True))
    return {
        "lines": len(lines),
        "BLEU": f"{bleu:.2f}",
        "BLEU - BLEU in fp32": f"{bleu - in_fp32['bleu']:+.2f}",
        "% of lines as in fp32": 100 * equal / len(lines),
    }
