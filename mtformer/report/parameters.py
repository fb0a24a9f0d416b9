"""The parameters of a run's model, by their names."""

import re
from html import escape

import torch

from mtformer.config.schema import ModelConfig
from mtformer.model.transformer import Transformer
from mtformer.page import table
from mtformer.text.tokenizer import TokenizerPair

Group = tuple[str, tuple[int, ...]]


def parameters(config: ModelConfig, tokenizers: TokenizerPair) -> str:
    """A table: the same parameter of all layers is a row; tied ones are there once."""
    with torch.device("meta"):
        model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    counts: dict[Group, int] = {}
    sizes: dict[Group, int] = {}
    for name, parameter in model.named_parameters():
        group = re.sub(r"\.\d+\.", ".*.", name, count=1), tuple(parameter.shape)
        counts[group] = counts.get(group, 0) + 1
        sizes[group] = sizes.get(group, 0) + parameter.numel() * parameter.element_size()
    rows = []
    for (name, shape), count in counts.items():
        number = count * torch.Size(shape).numel()
        told = " × ".join(f"{size:,}" for size in shape)
        rows.append((escape(name), told, str(count), f"{number:,}", f"{sizes[name, shape] / 1e6:.2f}"))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    rows.append(("all", "", "", f"{numbers:,}", f"{sum(sizes.values()) / 1e6:.2f}"))
    head = ("name; * is each layer", "shape", "times", "parameters", "MB in fp32")
    return (
        f"<p>{numbers:,} parameters, {sum(sizes.values()) / 1e6:.1f} MB in fp32.</p>"
        f"<details><summary>By name</summary>{table(head, rows, (2, 3, 4))}</details>"
    )
