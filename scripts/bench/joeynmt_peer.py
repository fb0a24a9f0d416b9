"""JoeyNMT as a peer of train_speed.py: it wants an environment of its own, so it works there and is asked from here.

    python3 -m venv joey && joey/bin/pip install torch==2.13.0 joeynmt importlib_metadata
    python scripts/bench/train_speed.py --joeynmt joey/bin/python

JoeyNMT 2.3 does not declare importlib_metadata and does not import without it. Run as a program by that interpreter,
this file trains with JoeyNMT's own TrainManager: its model, batches, loss, clipping and Adam as they come, in fp32 (its
autocast is for CUDA only). It imports nothing of mtformer.

B sentences, T target length.
"""

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from torch import Tensor

PAD = 1


# ---- here -----------------------------------------------------------------------------------------------------------


class JoeyNMT:
    """The system in a process of JoeyNMT's own environment, which works only while it is asked."""

    def __init__(self, python: Path, environment: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Starts the process and waits until it has warmed up.

        Args:
            python: an interpreter that has JoeyNMT.
            environment: variables added to this process's own.
            settings: of the training; what `serve` reads.

        Raises:
            RuntimeError: if the process fails; `ask` raises it for the same reason.
        """
        before = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "PYTHONPATH"))}
        self._process = subprocess.Popen(
            [python, __file__, json.dumps(settings)],
            env={**before, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions: str = self._answer()

    def ask(self, first: int, steps: int) -> float:
        """Seconds of so many steps, from this batch on."""
        assert self._process.stdin is not None
        print(json.dumps([first, steps]), file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"its process ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])
        return answer


# ---- there ----------------------------------------------------------------------------------------------------------


def model_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `model` section of a JoeyNMT config: tied, pre-norm, the paper's other settings."""
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
    return {"tied_embeddings": True, "tied_softmax": True, "encoder": side, "decoder": side}


def training_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `training` section of a JoeyNMT config."""
    return {
        "normalization": "tokens",
        "label_smoothing": settings["label_smoothing"],
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "learning_rate": settings["learning_rate"],
        "scheduling": "warmupinversesquareroot",
        "clip_grad_norm": settings["clip_norm"],
        "batch_size": 4096,  # of its own loader, which is not used
        "batch_type": "token",
    }


def read_batches(file: str) -> "list[tuple[Tensor, Tensor, Tensor]]":
    """Return sources (B, S), their lengths (B,) and targets (B, 1 + T) of each batch, with JoeyNMT's special ids."""
    import torch

    batches = []
    for fields in torch.load(file, weights_only=True):
        tgt_BT = torch.cat([fields["tgt_in_BT"][:, :1], fields["tgt_out_BT"]], dim=1)
        # mtformer has pad 0 and unk 1, JoeyNMT insists on unk 0 and pad 1.
        src_BS, tgt_BT = (torch.where(ids < 2, 1 - ids, ids) for ids in (fields["src_BS"], tgt_BT))
        batches.append((src_BS, fields["src_lengths_B"], tgt_BT))
    return batches


def build(settings: Mapping[str, Any], folder: Path) -> Callable[[int], None]:
    """One optimizer step on the batch of a number, as JoeyNMT's loop makes it."""
    import torch
    from joeynmt.batch import Batch
    from joeynmt.config import parse_global_args, set_validation_args
    from joeynmt.model import build_model
    from joeynmt.training import TrainManager
    from joeynmt.transformer_layers import MultiHeadedAttention
    from joeynmt.vocabulary import Vocabulary

    config = {"name": "bench", "model_dir": str(folder), "use_cuda": False, "data": {}, "testing": {}}
    args = parse_global_args({**config, "model": model_section(settings), "training": training_section(settings)})
    vocabulary = Vocabulary([f"piece{i}" for i in range(4, settings["vocab_size"])], args.data["special_symbols"])
    model = build_model(args.model, vocabulary, vocabulary)
    model.loss_function = (args.train.loss, args.train.label_smoothing)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = settings["attention_dropout"]
    trainer = TrainManager(
        rank=0,
        model=model,
        model_dir=folder,
        device=args.device,
        autocast=args.autocast,
        train_args=args.train,
        dev_args=set_validation_args(args.test),
    )
    batches = read_batches(settings["batches"])

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

    for number in range(len(batches)):
        step(number)
    return step


def serve(settings: Mapping[str, Any]) -> None:
    """Answer each line `[first, steps]` with the seconds that the steps took, or with the error that ends it."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer_lines(settings, answers)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


def answer_lines(settings: Mapping[str, Any], answers: TextIO) -> None:
    """Write the versions, then the answer to each line of stdin."""
    import torch

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(1)
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        step = build(settings, Path(folder))
        import joeynmt

        print(json.dumps(f"JoeyNMT {joeynmt.__version__} on torch {torch.__version__}"), file=answers, flush=True)
        for line in sys.stdin:
            first, steps = json.loads(line)
            begin = time.perf_counter()
            for number in range(first, first + steps):
                step(number)
            print(json.dumps(time.perf_counter() - begin), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=json.loads)
    serve(parser.parse_args().settings)


if __name__ == "__main__":
    main()
