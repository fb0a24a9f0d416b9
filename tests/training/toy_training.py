"""A small model and toy batches in which the target is the reversed source."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mtformer.config.data import DataConfig
from mtformer.config.schema import Config, ModelConfig, TrainingConfig
from mtformer.data.batching.batches import Batch, make_batch
from mtformer.data.batching.mixture import SamplerState
from mtformer.device import DTYPES
from mtformer.model import transformer
from mtformer.model.transformer import Transformer
from mtformer.training import objective
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import TrainingStep

VOCAB = 12
MODEL = ModelConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, dropout=0.1)
BATCHES_IN_EPOCH = 5


REGULARIZED: dict[str, Any] = {"consistency": "simcut", "cutoff": 0.3, "layer_drop": 0.5}


def regularize_without_chance(replace_in: Callable[[Any, str, Any], object]) -> None:
    """Make SimCut and LayerDrop depend on tokens and states instead of random numbers, and so not on the batch."""

    def mask(ids_BT: Tensor, p: float, cutoff: float) -> Tensor:
        is_second = torch.arange(len(ids_BT)) >= len(ids_BT) // 2
        return (ids_BT % 3 != 0) | ~is_second[:, None]

    def drop(x_BTD: Tensor, p: float) -> Tensor:
        return x_BTD * (x_BTD[:, :1, :1] > 0)

    replace_in(objective, "_draw_mask", mask)
    replace_in(transformer, "drop_sentences", drop)


def toy_config(layer_drop: float = 0.0, **training: object) -> Config:
    values = {"max_steps": 8, "validate_every": 4, "warmup_steps": 2, "log_every": 2, "device": "cpu"}
    return Config(
        data=DataConfig(src_lang="en", tgt_lang="de"),
        model=MODEL.model_copy(update={"layer_drop": layer_drop}),
        training=TrainingConfig(**{**values, **training}),
    )


def toy_batch(seed: int, num_pairs: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in range(2, 2 + num_pairs)]
    return make_batch([(row, row[::-1]) for row in rows])


def dev_batches() -> list[Batch]:
    """Return one batch of dev set `a` and two batches of dev set `b`."""
    return [replace(toy_batch(number), pairs_of={name: 6}) for number, name in ((90, "a"), (91, "b"), (92, "b"))]


def toy_batches(place: SamplerState, max_epochs: int | None = None) -> Iterator[Batch]:
    """Yield five batches per epoch, starting from a sampler state."""
    epoch, pairs = place.epoch, place.pairs
    while max_epochs is None or epoch < max_epochs:
        end = 0
        for number in range(BATCHES_IN_EPOCH):
            batch = toy_batch(1000 * epoch + number)
            end += batch.num_pairs
            if end > pairs:
                yield replace(batch, end=SamplerState(epoch, end))
        epoch, pairs = epoch + 1, 0


def toy_step(
    config: Config, precision: str = "fp32", ranks: Ranks = ALONE, dropout: float | None = None
) -> TrainingStep:
    torch.manual_seed(config.training.seed)
    model = config.model if dropout is None else config.model.model_copy(update={"dropout": dropout})
    return TrainingStep(Transformer(model, VOCAB, VOCAB, compute_dtype=DTYPES[precision]), config.training, ranks)
