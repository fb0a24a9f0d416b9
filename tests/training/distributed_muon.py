"""Script for `torchrun`: train the toy model with Muon for some steps of four micro-batches in several processes.

    distributed_muon.py FILE FIRST LAST PRECISION

FILE has the state before step FIRST, unless that is 1; process 0 replaces it with the state after step LAST.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from toy_training import toy_batch, toy_config, toy_step

from mtformer.training import muon
from mtformer.training.ranks import ALONE, Ranks, join_ranks

NUM_MICRO_BATCHES = 4


def take_steps(file: Path, steps: range, precision: str, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Train; return weights, state of the optimizer and, by process, the number of orthogonalized matrices."""
    config = toy_config(optimizer="muon", learning_rate=1e-2, warmup_steps=0, eps=1e-3, weight_decay=0.1)
    step = toy_step(config, precision, ranks=ranks, dropout=0.0)
    if steps.start > 1:
        state = torch.load(file, weights_only=True)
        step.load_training_weights(state["weights"])
        step.load_optimizer_state(state["optimizer"])

    num_matrices = []
    own_orthogonalize = muon.orthogonalize

    def counted(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        num_matrices.append(len(matrices))
        return own_orthogonalize(matrices, dtype)

    muon.orthogonalize = counted
    for number in steps:
        batches = [toy_batch(NUM_MICRO_BATCHES * number + index) for index in range(NUM_MICRO_BATCHES)]
        step.run(batches[ranks.rank :: ranks.size], number)
    muon.orthogonalize = own_orthogonalize
    return {
        "weights": step.weights(),
        "optimizer": step.optimizer_state(),
        "num_matrices": ranks.gather(sum(num_matrices) // len(steps)),
    }


def has_equal_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


if __name__ == "__main__":
    path, first, last, precision_name = sys.argv[1:]
    with join_ranks(torch.device("cpu")) as processes:
        result = take_steps(Path(path), range(int(first), int(last) + 1), precision_name, processes)
        for weights in processes.gather(result["weights"]):
            assert has_equal_bits(weights, result["weights"])
        for moments in processes.gather(result["optimizer"]["state"]):
            for index, moment in moments.items():
                assert has_equal_bits(moment, result["optimizer"]["state"][index])
        if processes.is_main:
            torch.save(result, path)
