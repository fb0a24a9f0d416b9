"""Run directories like those of trained models, with texts that contain markup; nothing is trained."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from playwright.sync_api import Page

from mtformer.config.data import DataConfig
from mtformer.config.loading import dump_config
from mtformer.config.schema import (
    Config,
    DecodingConfig,
    EvaluationConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from mtformer.data.data_report import DataReport
from mtformer.decoding.translator import Translator
from mtformer.evaluation.card import EvalSet, ScoredTranslations, write_card
from mtformer.evaluation.scores import score
from mtformer.files import write_text
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir, write_config
from mtformer.text.tokenizer import JOINT, Tokenizer
from mtformer.text.train import train_tokenizer
from mtformer.training.checkpoint import Checkpoint, save_checkpoint
from mtformer.training.history import append_record

SCRIPT = "</script><script>document.title='broken'</script>"
IMAGE = """<img src=x onerror="document.title='broken'">"""
PAIRS = [
    (f"a dog {SCRIPT} runs", f"ein Hund {SCRIPT} läuft"),
    (f"the cat {IMAGE} sleeps", f"die Katze {IMAGE} schläft"),
    ("two men play", "zwei Männer spielen"),
    ("a woman reads a book", "eine Frau liest ein Buch"),
]
HYPOTHESES = [f"ein {IMAGE} läuft", "die Katze schläft", "zwei Männer spielen", "eine Frau liest Buch"]
Opens = Callable[..., Page]
"""Function that opens a file in Chromium; keyword arguments are those of `new_page`."""
STEPS, VALIDATE_EVERY, LOG_EVERY = 60, 20, 4
MODEL = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}


def begin_run(folder: Path, **training: object) -> RunDir:
    """Return a run that has only its config and its tokenizer."""
    run = RunDir(folder)
    source = {"src": str(folder / "test.en"), "tgt": str(folder / "test.de")}
    config = Config(
        data=DataConfig.model_validate(
            {"src_lang": "en", "tgt_lang": "de", "test": {"small": source}, "filters": {"max_tokens": 90}}
        ),
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(**MODEL, max_positions=200),
        decoding=DecodingConfig(beam_size=1, max_length=12),
        training=TrainingConfig(**{"max_steps": STEPS, "validate_every": VALIDATE_EVERY, **training}),
    )
    for number, language in enumerate(("en", "de")):
        write_text(folder / f"test.{language}", "".join(f"{pair[number]}\n" for pair in PAIRS))
    train_tokenizer((line for pair in PAIRS * 5 for line in pair), config.tokenizer, run.tokenizer / JOINT)
    write_config(run, dump_config(config))
    return run


def write_history(run: RunDir, seed: int = 0) -> None:
    """Write metrics.jsonl and samples.jsonl up to the last step."""
    for step in range(LOG_EVERY, STEPS + 1, LOG_EVERY):
        loss = 2 + 6 * math.exp(-step / 20) + 0.1 * seed
        figures = {"loss": loss, "nll": loss - 0.5, "learning_rate": 1e-3, "grad_norm": 1 / step, "padding": 0.05}
        figures |= {"tokens_per_second": 1000.0 + step, "seconds_per_step": 0.5, "waiting_for_data": 0.01}
        figures["seconds_left"] = 60.0
        append_record(run.metrics, "train", step, epoch=0, **figures, memory_gb=1.5, skipped_steps=0.0)
        if step % VALIDATE_EVERY == 0:
            dev = {"loss": loss + 0.2, "perplexity": math.exp(loss - 0.3), "bleu": step / 3.0, "chrf": step / 2.0}
            append_record(run.metrics, "dev", step, epoch=0, **dev)
            samples = [(src, tgt, f"{IMAGE} {step // 40}") for src, tgt in PAIRS[:2]]
            append_record(run.samples, "dev", step, samples=samples)


def finished_run(folder: Path, seed: int = 0, **training: object) -> RunDir:
    """Return a finished run with random weights."""
    run = begin_run(folder, seed=seed, **training)
    write_history(run, seed)
    size = Tokenizer.load(run.tokenizer / JOINT).vocab_size
    torch.manual_seed(seed)
    weights = dict(Transformer(ModelConfig(**MODEL, max_positions=200), size, size).named_parameters())
    made_with = {"device": "cpu", "precision": "fp32", "mtformer": "0.1.0", "torch": "2.13.0"}
    saved_weights = {name: weight.detach() for name, weight in weights.items()}
    save_checkpoint(run, Checkpoint(STEPS, saved_weights, {}, {}, made_with))
    report = DataReport(read=9, kept=4, left_out={"duplicate": 5}, tokens={"src": 40, "tgt": 44})
    write_text(run.data_report, json.dumps(report.to_dict()))
    sources, references = ([pair[side] for pair in PAIRS] for side in (0, 1))
    scores = score(HYPOTHESES, references, EvaluationConfig())
    translator = Translator.load(folder, device="cpu")
    test = EvalSet("small", sources, [references], "de", "en")
    result = ScoredTranslations(HYPOTHESES, scores, EvaluationConfig(), seconds=1.0)
    write_card(run.evaluation("small"), test, result, translator)
    set_state(run, "finished")
    return run


def set_state(run: RunDir, state: str, error: str | None = None) -> None:
    values = {"state": state, "started": "2026-01-01T00:00:00+00:00", "ended": None, "error": error}
    write_text(run.state, json.dumps(values))
