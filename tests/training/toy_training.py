"""A small model and toy batches in which the target is the reversed source."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from mtformer.config.data import DataConfig
from mtformer.config.schema import Config, ModelConfig, TrainingConfig
from mtformer.data.batching.batches import Batch, make_batch
from mtformer.data.batching.mixture import SamplerState
from mtformer.model.transformer import Transformer
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import TrainingStep

VOCAB = 12
MODEL = ModelConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, dropout=0.1)
BATCHES_IN_EPOCH = 5


def toy_config(**training: object) -> Config:
    values = {"max_steps": 8, "validate_every": 4, "warmup_steps": 2, "log_every": 2, "device": "cpu"}
    return Config(
        data=DataConfig(src_lang="en", tgt_lang="de"),
        model=MODEL,
        training=TrainingConfig(**{**values, **training}),
    )


def toy_batch(seed: int, num_pairs: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in range(2, 2 + num_pairs)]
    return make_batch([(row, row[::-1]) for row in rows])


def dev_batches() -> list[Batch]:
    """Return one batch of dev set `a` and two batches of dev set `b`."""
    return [replace(toy_batch(number), pairs_of={name: 6}) for number, name in ((90, "a"), (91, "b"), (92, "b"))]


def toy_batches(place: SamplerState, step: int, max_epochs: int | None = None) -> Iterator[Batch]:
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
    return TrainingStep(Transformer(model, VOCAB, VOCAB), config.training, precision, ranks)
