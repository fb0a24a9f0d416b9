"""Decoding speed, side by side: mtformer and Hugging Face `generate`, in sentences per second.

    python scripts/bench/decode_speed.py --json decode_speed.json

Models of the same sizes with random weights translate the same token ids, sorted by length, into exactly 16 target
tokens each, greedily and with beam 5; each system uses its best batch size of a quick scan. They take turns, each turn
being the whole text. Needs the extra `bench`, and a machine with nothing else on.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import peers
import torch
from peers import EOS, PAD, SIZES, VOCAB_SIZE, Size, Worker
from torch import Tensor

from mtformer.decoding.beam import beam_search
from mtformer.decoding.limits import Limits
from mtformer.decoding.stepwise import greedy
from mtformer.model.hardware import keep_freed_memory

BEAMS = {"greedy": 1, "beam 5": 5}
SYSTEMS = ("mtformer-fp32", "mtformer-bf16", "marian-fp32", "marian-bf16")
NUM_TARGET_TOKENS = 16
BATCH_SIZES = (16, 32, 64, 128, 256)

Decode = Callable[[Tensor, Tensor], object]  # src_BS, src_lengths_B


# ---- the systems, each built in its worker --------------------------------------------------------------------------


def mtformer_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """mtformer's search on its own model."""
    keep_freed_memory()
    model = peers.transformer(size, dropout=0.0).eval().to(device)
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    # The ratios are out of the way, so that max_tokens alone decides; it does not count eos.
    limits = Limits(max_length_ratio=1000, min_length_ratio=1000, max_tokens=num_tokens - 1)

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> None:
        if num_beams == 1:
            best = greedy(model, src_BS, src_lengths_B, limits)
        else:
            best = [found[0] for found in beam_search(model, src_BS, src_lengths_B, num_beams, 1.0, limits)]
        if any(len(hypothesis.tokens) != num_tokens - 1 for hypothesis in best):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")

    return decode


def marian_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """Hugging Face `generate` on Marian."""
    from transformers import GenerationConfig

    model = peers.marian(size).eval().to(device)
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    settings = GenerationConfig(
        num_beams=num_beams,
        do_sample=False,
        min_new_tokens=num_tokens - 1,
        max_new_tokens=num_tokens,
        forced_eos_token_id=EOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=model.config.decoder_start_token_id,
    )

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> Tensor:
        output: Tensor = model.generate(input_ids=src_BS, attention_mask=src_BS != PAD, generation_config=settings)
        if output.size(1) != 1 + num_tokens or not bool((output == EOS).sum(1).eq(1).all()):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")
        return output

    return decode


def build(system: str, size: Size, num_beams: int, sources: Sequence[Sequence[int]]) -> Callable[[], tuple[float, int]]:
    """In the worker: what translates all sources and returns the seconds, and the batch size it found to be best."""
    family, precision = system.split("-")
    decode = (mtformer_system if family == "mtformer" else marian_system)(size, precision, num_beams)
    by_length = sorted(sources, key=len)

    def seconds(batch_size: int) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            for first in range(0, len(by_length), batch_size):
                batch = by_length[first : first + batch_size]
                lengths_B = torch.tensor([len(ids) + 1 for ids in batch])
                width = int(lengths_B.max())
                decode(torch.tensor([[*ids, EOS] + [PAD] * (width - len(ids) - 1) for ids in batch]), lengths_B)
        return time.perf_counter() - begin

    seconds(BATCH_SIZES[-1])  # warm-up
    batch_size = min(BATCH_SIZES, key=seconds)
    return lambda: (seconds(batch_size), batch_size)


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(size: Size, sources: Sequence[Sequence[int]], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Sentences per second by search and system, round by round, and the batch sizes."""
    figures: dict[str, dict[str, Any]] = {}
    for search, num_beams in BEAMS.items():
        workers = {
            system: Worker(partial(build, system, size, num_beams, sources), threads=options.threads)
            for system in options.systems
        }
        answers = peers.take_turns(workers, [()] * options.rounds)
        for worker in workers.values():
            worker.close()
        figures[search] = {
            "sentences_per_second": {name: [len(sources) / s for s, _ in parts] for name, parts in answers.items()},
            "batch_size": {name: parts[0][1] for name, parts in answers.items()},
        }
    return figures


def report(size_name: str, figures: dict[str, dict[str, Any]]) -> str:
    """The markdown section of one size; adds the ratios to the figures."""
    rows, ratios = [], []
    for search, of_search in figures.items():
        rates = of_search["sentences_per_second"]
        for system, r in rates.items():
            numbers = [f"{value:,.0f}" for value in (statistics.median(r), min(r), max(r))]
            rows.append([f"{search}, {system}", *numbers, str(of_search["batch_size"][system])])
        of_search["ratios"] = []
        for ratio in peers.ratios_to_fastest(rates, [name for name in rates if name.startswith("marian")]):
            of_search["ratios"].append(vars(ratio))
            ratios.append(f"- {search}, {ratio} the faster Marian")
    table = peers.markdown_table(["system", "sentences/s, median", "lowest", "highest", "batch size"], rows)
    return "\n".join([f"## {peers.describe(size_name, SIZES[size_name])}", "", table, "", *ratios])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_options(parser, SYSTEMS, default_sizes=["small"], default_rounds=5)
    parser.add_argument("--text", type=Path, default=peers.DEFAULT_DATA / "test_2016_flickr.en.gz",
                        help="what is translated (or .gz)")  # fmt: skip
    parser.add_argument("--sentences", type=int, help="only so many of its lines")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if any(system.startswith("marian") for system in options.systems):
        peers.require_transformers()
    tokenizer = peers.train_tokenizer([options.src, options.tgt])
    sources = tokenizer.encode(peers.read_lines(options.text)[: options.sentences])
    header = {
        **peers.surroundings(options.threads),
        "settings": f"{len(sources)} sentences, {NUM_TARGET_TOKENS} target tokens forced (eos counted), "
        f"{options.rounds} rounds, vocabulary {VOCAB_SIZE}",
    }
    print("# Decoding speed, sentences per second\n")
    print("\n".join(f"- {name}: {value}" for name, value in header.items()) + "\n", flush=True)
    sizes = {}
    for size_name in options.sizes:
        sizes[size_name] = measure(SIZES[size_name], sources, options)
        print(report(size_name, sizes[size_name]) + "\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps({**header, "sizes": sizes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
