"""Script for `torchrun`: train the toy model for some steps in several processes; process 0 writes the results."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from toy_training import REGULARIZED, dev_batches, regularize_without_chance, toy_batch, toy_config, toy_step

from mtformer.model.ops import Linear
from mtformer.training.ranks import join_ranks
from mtformer.training.validation import dev_loss

if __name__ == "__main__":
    target, sharded, precision = Path(sys.argv[1]), sys.argv[2] == "sharded", sys.argv[3]
    regularization: dict[str, Any] = {}
    if "regularized" in sys.argv:
        regularization = REGULARIZED
        regularize_without_chance(setattr)
    with join_ranks(torch.device("cpu")) as ranks:
        shared: dict[str, Any] = {"learning_rate": 1e-2, "eps": 1e-3, "clip_norm": 0.1, "ema_decay": 0.5}
        config = toy_config(**shared, sharded=sharded, **regularization)
        step = toy_step(config, precision, ranks=ranks, dropout=0.0)
        dtypes = set()  # of the layer weights in forward passes

        def record(module: nn.Module, inputs: object) -> None:
            dtypes.add(str(module.weight.dtype))

        for module in [*step.model.encoder.modules(), *step.model.decoder.modules()]:
            if isinstance(module, Linear):
                module.register_forward_pre_hook(record)
        norms, losses = [], []
        for number in range(1, 4):
            # Batches of different sizes, two per step and process; in the last step, process 1 has none.
            first = 4 * number + ranks.rank
            own = [toy_batch(first, num_pairs=3 + ranks.rank), toy_batch(first + 2, num_pairs=4 + 3 * ranks.rank)]
            if number == 3 and ranks.rank == 1:
                own[1] = own[1].without_targets()
            with step.ema_weights():  # a validation must not change the next step
                dev_loss(step, dev_batches())
            random_state = torch.get_rng_state()
            step.search_model()
            assert torch.equal(random_state, torch.get_rng_state())
            result = step.run(own, number)
            norms.append(float(result.grad_norm))
            losses.append(ranks.sum([float(result.loss)])[0])
        search_model = step.search_model()
        outcome = {
            "weights": step.weights(),
            "search_weights": {name: weight.detach().clone() for name, weight in search_model.named_parameters()},
            "optimizer": step.optimizer_state(),
            "norms": norms,
            "losses": losses,
            "dtypes": sorted(dtypes),
            "dev": dev_loss(step, dev_batches()),
        }
        # The state can be loaded again.
        step.load_optimizer_state(outcome["optimizer"])
        again = step.optimizer_state()["state"]
        before = outcome["optimizer"]["state"]
        outcome["same_state"] = all(torch.equal(again[i][name], before[i][name]) for i in before for name in before[i])
        if ranks.is_main:
            torch.save(outcome, target)
