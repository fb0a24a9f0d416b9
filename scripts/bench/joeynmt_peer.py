"""JoeyNMT as a peer in train_speed.py, in a separate Python environment.

    python3 -m venv joey && joey/bin/pip install torch==2.13.0 joeynmt importlib_metadata
    python scripts/bench/train_speed.py --joeynmt joey/bin/python

JoeyNMT 2.3 requires importlib_metadata but does not declare it. When that interpreter runs this file as a program, it
trains with JoeyNMT's own TrainManager: its model, batches, loss, clipping and Adam with their defaults, in fp32 (its
autocast supports CUDA only). It reads settings from the first line of stdin, and imports nothing from mtformer.

B sentences, S source length, T target length.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

UNK, PAD, BOS, EOS = 0, 1, 2, 3  # ids in JoeyNMT; in mtformer pad is 0 and unk is 1


# ---- in the worker of train_speed.py --------------------------------------------------------------------------------


def start(python: Path, settings: Mapping[str, Any]) -> Callable[[int, int], float]:
    """Start JoeyNMT in its own process, and return a function that trains a slice there and returns its seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [python, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(first: int, steps: int) -> float:
        print(json.dumps([first, steps]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"JoeyNMT's process ended with exit code {process.wait()}; see its error above")
        return float(answer)

    print(json.dumps(settings), file=process.stdin, flush=True)
    return run


def version(python: Path) -> str:
    """Return the versions of JoeyNMT and PyTorch in the environment of an interpreter."""
    program = 'from importlib.metadata import version as v; print(f\'{v("joeynmt")} on torch {v("torch")}\')'
    return subprocess.run([python, "-I", "-c", program], capture_output=True, text=True).stdout.strip()


# ---- in JoeyNMT's environment ---------------------------------------------------------------------------------------


def joeynmt_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JoeyNMT config: a tied pre-norm model with the other settings of the paper."""
    side = {
        "type": "transformer",
        "num_layers": settings["num_layers"],
        "num_heads": settings["num_heads"],
        "hidden_size": settings["d_model"],
        "ff_size": settings["d_ff"],
        "dropout": settings["dropout"],
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": settings["d_model"], "scale": True, "dropout": settings["dropout"]},
    }
    training = {
        "normalization": "tokens",
        "label_smoothing": settings["label_smoothing"],
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "learning_rate": settings["learning_rate"],
        "scheduling": "warmupinversesquareroot",
        "clip_grad_norm": settings["clip_norm"],
        "batch_size": 4096,  # for JoeyNMT's own loader, which is not used
        "batch_type": "token",
    }
    model = {"tied_embeddings": True, "tied_softmax": True, "encoder": side, "decoder": side}
    return {"name": "bench", "use_cuda": False, "data": {}, "testing": {}, "model": model, "training": training}


def pad(sentences: Sequence[Sequence[int]]) -> "tuple[Tensor, Tensor]":
    """Return ids (B, S), each row ending with eos and padding, and lengths (B,), with JoeyNMT's special ids."""
    import torch

    rows = [torch.tensor([*ids, EOS]) for ids in sentences]
    # mtformer's unk has the id of JoeyNMT's pad, and the text contains no padding yet.
    ids_BS = torch.nn.utils.rnn.pad_sequence([torch.where(ids == 1, UNK, ids) for ids in rows], True, PAD)
    return ids_BS, torch.tensor([len(ids) for ids in rows])


def build(settings: Mapping[str, Any], folder: Path) -> Callable[[int], None]:
    """Return the function that makes one optimizer step on the batch with a given number, like JoeyNMT's loop."""
    import torch
    from joeynmt.batch import Batch
    from joeynmt.config import parse_global_args, set_validation_args
    from joeynmt.model import build_model
    from joeynmt.training import TrainManager
    from joeynmt.transformer_layers import MultiHeadedAttention
    from joeynmt.vocabulary import Vocabulary

    args = parse_global_args({**joeynmt_config(settings), "model_dir": str(folder)})
    vocabulary = Vocabulary([f"piece{i}" for i in range(4, settings["vocab_size"])], args.data["special_symbols"])
    model = build_model(args.model, vocabulary, vocabulary)
    model.loss_function = (args.train.loss, args.train.label_smoothing)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
    trainer = TrainManager(
        rank=0,
        model=model,
        model_dir=folder,
        device=args.device,
        autocast=args.autocast,
        train_args=args.train,
        dev_args=set_validation_args(args.test),
    )
    batches = []
    for pairs in settings["batches"]:
        src, tgt = zip(*pairs, strict=True)
        batches.append((*pad(src), pad([[BOS, *ids] for ids in tgt])[0]))

    def step(number: int) -> None:
        src_BS, src_lengths_B, tgt_BT = batches[number % len(batches)]
        indices_B = torch.arange(len(src_BS))
        batch = Batch(src_BS, src_lengths_B, None, tgt_BT, None, indices_B, args.device, PAD, model.eos_index)
        trainer._train_step(batch)
        trainer.clip_grad_fun(parameters=model.parameters())
        trainer.optimizer.step()
        trainer.scheduler.step(trainer.stats.steps)
        model.zero_grad()
        trainer.stats.steps += 1

    return step


def main() -> None:
    """Read the settings, then answer each line `[first, steps]` with the time of these steps in seconds."""
    settings, answers = json.loads(sys.stdin.readline()), sys.stdout
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        import torch

        torch.set_num_threads(settings["threads"])
        torch.manual_seed(1)
        logging.disable(logging.INFO)
        step = build(settings, Path(folder))
        for line in sys.stdin:
            first, steps = json.loads(line)
            begin = time.perf_counter()
            for number in range(first, first + steps):
                step(number)
            print(time.perf_counter() - begin, file=answers, flush=True)


if __name__ == "__main__":
    main()
