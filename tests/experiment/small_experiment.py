"""A small corpus, configs and a progress reporter for experiments of a few steps."""

from pathlib import Path
from typing import Any

from mtformer.config.schema import Config
from mtformer.data.demo import write_demo
from mtformer.experiment.train import Outcome, train_experiment
from mtformer.experiment.verify import StopAt
from mtformer.run_dir import RunDir

QUIET = StopAt(None)
"""Progress reporter without output."""


def write_corpus(folder: Path, **num_lines: int) -> Path:
    """Write the first lines of each set of the demo corpus, and return the folder."""
    for name, path in write_demo(folder / "demo").items():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: num_lines.get(name.split(".")[0], 0)]), encoding="utf-8")
    return folder


def make_config(corpus: Path, **changes: dict[str, Any]) -> Config:
    """Return the config of a small experiment on a corpus from `write_corpus`; `changes` override values by section."""
    sides = {name: [{"src": f"{corpus}/{name}.en", "tgt": f"{corpus}/{name}.de"}] for name in ("train", "dev")}
    tree: dict[str, dict[str, Any]] = {
        "data": {"src_lang": "en", "tgt_lang": "de", **sides},
        "tokenizer": {"vocab_size": 200},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1},
        "training": {
            "device": "cpu", "precision": "fp32", "batch_tokens": 256, "max_steps": 4, "validate_every": 4,
            "log_every": 2, "warmup_steps": 2,
        },
        "decoding": {"max_length": 8, "beam_tokens": 64},
    }  # fmt: skip
    return Config.model_validate({name: {**section, **changes.get(name, {})} for name, section in tree.items()})


def train(config: Config, run: RunDir, resume: bool = False, progress: StopAt = QUIET) -> Outcome:
    return train_experiment(config, run, progress, resume, overwrite=False)
