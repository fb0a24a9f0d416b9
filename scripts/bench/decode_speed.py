"""Decoding speed, side by side: mtformer, Hugging Face `generate` and CTranslate2, in sentences per second.

    python scripts/bench/decode_speed.py --json decode_speed.json

One model with random weights, exported for each of them, translates the same token ids, sorted by length, into exactly
16 target tokens each, greedily and with beam 5. Each system uses the best batch size, and the best way to share the
threads, of a quick scan. They take turns, each turn being the whole text. Needs the extras `bench` and `ctranslate2`,
and a machine with nothing else on.

The searches "greedy, text" and "beam 5, text" are from text to text in int8: `Translator` with the backend ctranslate2
and its own settings, against CTranslate2 and SentencePiece used directly with the best settings of a scan.

Systems in bf16 are left out on a processor without fast bf16. If a system fails, the others are measured nevertheless,
and the exit code is 1.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import peers
import torch
import turns
from peers import EOS, PAD, SIZES, Size
from safetensors.torch import save_file
from torch import Tensor

from mtformer.config.loading import dump_config
from mtformer.config.schema import Config, DecodingConfig
from mtformer.decoding import engine as engines
from mtformer.decoding.beam import beam_search
from mtformer.decoding.inference import InferenceModel
from mtformer.decoding.rules import Limits
from mtformer.decoding.sampling import generate
from mtformer.decoding.segments import Segment
from mtformer.decoding.translator import Translator
from mtformer.device import set_up_memory
from mtformer.export.ctranslate2 import export_ctranslate2
from mtformer.export.huggingface import export_huggingface
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir

BEAMS = {"greedy": 1, "beam 5": 5}
TEXT_BEAMS = {"greedy, text": 1, "beam 5, text": 5}
SEARCHES = [*BEAMS, *TEXT_BEAMS]
SYSTEMS = (
    *("mtformer-fp32", "mtformer-bf16"),
    *("huggingface-fp32", "huggingface-bf16"),
    *("ctranslate2-fp32", "ctranslate2-int8"),
)
TEXT_SYSTEMS = ("mtformer-ctranslate2-int8", "ctranslate2-sentencepiece-int8")
NUM_TARGET_TOKENS = 16
BATCH_SIZES = (32, 64, 128, 256)
EOS_BIAS = 50.0
"""It ends translations at the lower bound of their length, so that none reaches the upper one."""

Decode = Callable[[Tensor, Tensor], object]  # src_BS, src_lengths_B
Translate = Callable[[Sequence[Sequence[int]], int, int], object]
"""(sources without eos, sentences a batch, workers that share the threads)"""


# ---- on one batch of ids --------------------------------------------------------------------------------------------


def mtformer_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """mtformer's search on its own model."""
    set_up_memory()
    model = InferenceModel.prepare(peers.transformer(size, dropout=0.0), torch.device(device), precision)
    # The ratios are out of the way, so that max_tokens alone decides; it does not count eos.
    limits = Limits(max_length_ratio=1000, min_length_ratio=1000, max_tokens=num_tokens - 1)

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> None:
        if num_beams == 1:
            best = [found[0] for found in generate(model, src_BS, src_lengths_B, limits)]
        else:
            best = [found[0] for found in beam_search(model, src_BS, src_lengths_B, num_beams, 1.0, limits)]
        if any(len(hypothesis.tokens) != num_tokens - 1 for hypothesis in best):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")

    return decode


def marian_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """Hugging Face `generate` on Marian."""
    model = peers.marian(size).eval().to(device)
    return generate_with(model.to(torch.bfloat16) if precision == "bf16" else model, num_beams, num_tokens)


def generate_with(model: Any, num_beams: int, num_tokens: int) -> Decode:
    """Hugging Face `generate` on any model."""
    from transformers import GenerationConfig

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


# ---- on all of a text, from one bundle ------------------------------------------------------------------------------


def make_bundle(size: Size, tokenizer: Any, folder: Path) -> RunDir:
    """Write a bundle with random weights, what the other systems load, and the same for text to text."""
    run = write_run(size, tokenizer, folder / "mtformer", has_bias=False)
    for kind in (None, "int8"):
        export_ctranslate2(run, folder / f"ctranslate2-{kind or 'fp32'}", None, kind)
    export_huggingface(run, folder / "huggingface", None)
    export_ctranslate2(write_run(size, tokenizer, folder / "text", has_bias=True), folder / "text-direct", None, None)
    return run


def write_run(size: Size, tokenizer: Any, folder: Path, has_bias: bool) -> RunDir:
    """Write a bundle with random weights; with a bias, eos comes as soon as it may."""
    model_config = peers.model_config(size, dropout=0.0).model_copy(update={"output_bias": has_bias})
    config = Config.model_validate(
        {
            "data": {"src_lang": "en", "tgt_lang": "de"},
            "tokenizer": {"vocab_size": size.vocab_size},
            "model": model_config.model_dump(),
        }
    )
    run = RunDir(folder)
    run.tokenizer.mkdir(parents=True)
    (run.tokenizer / "joint.model").write_bytes(tokenizer.serialized_model_proto())
    run.config.write_text(dump_config(config), encoding="utf-8")
    torch.manual_seed(1)
    model = Transformer(model_config, size.vocab_size, size.vocab_size)
    if model.output_bias is not None:
        model.output_bias.data[EOS] = EOS_BIAS
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, run.bundle_weights)
    write_checksums(run.path)
    return run


def batches_of(sources: Sequence[Sequence[int]], batch_size: int) -> Iterator[Sequence[Sequence[int]]]:
    """The sources, sorted by length, so many at a time."""
    by_length = sorted(sources, key=len)
    yield from (by_length[first : first + batch_size] for first in range(0, len(by_length), batch_size))


def mtformer_on(folder: Path, precision: str, num_beams: int) -> Translate:
    """Our engine, as `mtformer translate` uses it."""
    translator = Translator.load(folder / "mtformer", device="cpu", precision=precision)
    fixed = NUM_TARGET_TOKENS - 1
    settings = DecodingConfig(
        beam_size=num_beams, min_length=fixed, max_length=fixed, max_length_ratio=1000, validation_beam_size=1
    )

    def translate(sources: Sequence[Sequence[int]], batch_size: int, workers: int) -> None:
        engines.MAX_WORKERS = workers
        batches = [[Segment([*ids, EOS]) for ids in batch] for batch in batches_of(sources, batch_size)]
        for n_bests in translator.engine.search(batches, settings, None):
            if any(len(n_best[0].tokens) != fixed for n_best in n_bests):
                raise RuntimeError(f"not {NUM_TARGET_TOKENS} target tokens for each sentence")

    return translate


def huggingface_on(folder: Path, precision: str, num_beams: int) -> Translate:
    """`generate` on the exported folder."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "huggingface").eval()
    decode = generate_with(
        model.to(torch.bfloat16) if precision == "bf16" else model.float(), num_beams, NUM_TARGET_TOKENS
    )

    def translate(sources: Sequence[Sequence[int]], batch_size: int, workers: int) -> None:
        with torch.inference_mode():
            for batch in batches_of(sources, batch_size):
                lengths_B = torch.tensor([len(ids) + 1 for ids in batch])
                width = int(lengths_B.max())
                decode(torch.tensor([[*ids, EOS] + [PAD] * (width - len(ids) - 1) for ids in batch]), lengths_B)

    return translate


def ctranslate2_on(folder: Path, precision: str, num_beams: int) -> Translate:
    """The library, on the pieces that it takes."""
    import ctranslate2

    pieces = Translator.load(folder / "mtformer", device="cpu").tokenizers.src.vocabulary()
    threads, models = torch.get_num_threads(), {}

    def translate(sources: Sequence[Sequence[int]], batch_size: int, workers: int) -> None:
        if workers not in models:
            models.clear()
            models[workers] = ctranslate2.Translator(
                str(folder / f"ctranslate2-{precision}"),
                compute_type={"fp32": "float32", "int8": "int8_float32"}[precision],
                inter_threads=workers,
                intra_threads=threads // workers,
            )
        found = models[workers].translate_batch(
            [[pieces[token] for token in ids] for ids in sorted(sources, key=len)],
            beam_size=num_beams,
            max_batch_size=batch_size,
            min_decoding_length=NUM_TARGET_TOKENS - 1,
            max_decoding_length=NUM_TARGET_TOKENS - 1,
        )
        if any(len(one.hypotheses[0]) != NUM_TARGET_TOKENS - 1 for one in found):
            raise RuntimeError(f"not {NUM_TARGET_TOKENS} target tokens for each sentence")

    return translate


ON = {"mtformer": mtformer_on, "huggingface": huggingface_on, "ctranslate2": ctranslate2_on}


def build(
    system: str, folder: Path, num_beams: int, sources: Sequence[Sequence[int]]
) -> Callable[[], tuple[float, str]]:
    """In the worker: what translates all sources and returns the seconds, and the setting it found to be best."""
    family, precision = system.split("-")
    threads = torch.get_num_threads()  # asked before CTranslate2 sets OpenMP's for itself
    translate = ON[family](folder, precision, num_beams)
    shares = [1] if family == "huggingface" else sorted({1, threads})

    def seconds(text: Sequence[Sequence[int]], setting: tuple[int, int]) -> float:
        workers, batch_size = setting
        begin = time.perf_counter()
        translate(text, batch_size, workers)
        return time.perf_counter() - begin

    settings = list(product(shares, BATCH_SIZES))
    seconds(sources[::4], settings[-1])  # warm-up
    best = min(settings, key=partial(seconds, sources[::2]))
    return lambda: (seconds(sources, best), f"{best[1]}, {best[0]} x {threads // best[0]} threads")


# ---- from text to text ----------------------------------------------------------------------------------------------


def mtformer_text(folder: Path, num_beams: int) -> Callable[[Sequence[str]], tuple[int, str]]:
    """`Translator` with the backend ctranslate2, in its own batches."""
    translator = Translator.load(folder / "text", device="cpu", precision="int8", backend="ctranslate2")
    translator = translator.with_decoding(
        beam_size=num_beams, min_length=NUM_TARGET_TOKENS - 1, max_length=NUM_TARGET_TOKENS
    )

    def translate(lines: Sequence[str]) -> tuple[int, str]:
        return sum(len(one.tokens) + 1 for one in translator.translate(lines)), "its own settings"

    return translate


def direct_text(folder: Path, num_beams: int, lines: Sequence[str]) -> Callable[[Sequence[str]], tuple[int, str]]:
    """CTranslate2 and SentencePiece, with the best settings of a scan over a quarter of the lines."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "text/tokenizer/joint.model"))
    threads = torch.get_num_threads()
    models = {
        workers: ctranslate2.Translator(
            str(folder / "text-direct"), compute_type="int8", inter_threads=workers, intra_threads=threads // workers
        )
        for workers in sorted({1, threads})
    }

    def translate_with(setting: tuple[int, int, str], some: Sequence[str]) -> tuple[int, str]:
        workers, batch_size, batch_type = setting
        found = models[workers].translate_batch(
            processor.encode(list(some), out_type=str, num_threads=threads),
            beam_size=num_beams,
            max_batch_size=batch_size,
            batch_type=batch_type,
            min_decoding_length=NUM_TARGET_TOKENS - 1,
            max_decoding_length=NUM_TARGET_TOKENS,
        )
        pieces = [one.hypotheses[0] for one in found]
        processor.decode(pieces)
        return sum(len(of_line) + 1 for of_line in pieces), f"{batch_size} {batch_type}, {workers} workers"

    def seconds(setting: tuple[int, int, str]) -> float:
        begin = time.perf_counter()
        translate_with(setting, lines[::4])
        return time.perf_counter() - begin

    batches = [*((size, "examples") for size in BATCH_SIZES), *((size, "tokens") for size in (256, 512, 1024, 2048))]
    best = min([(workers, *batch) for workers in models for batch in batches], key=seconds)
    return partial(translate_with, best)


def build_text(system: str, folder: Path, num_beams: int, lines: Sequence[str]) -> Callable[[], tuple[float, str]]:
    """In the worker: what translates all lines and returns the seconds, and its setting."""
    is_ours = system.startswith("mtformer")
    translate = mtformer_text(folder, num_beams) if is_ours else direct_text(folder, num_beams, lines)
    translate(lines[::4])  # warm-up

    def answer() -> tuple[float, str]:
        begin = time.perf_counter()
        num_tokens, setting = translate(lines)
        if num_tokens != NUM_TARGET_TOKENS * len(lines):
            raise RuntimeError(f"not {NUM_TARGET_TOKENS} target tokens for each sentence")
        return time.perf_counter() - begin, setting

    return answer


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(
    folder: Path, lines: Sequence[str], sources: Sequence[Sequence[int]], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Sentences per second by search and system, round by round, the settings, and the errors of what failed."""
    figures: dict[str, dict[str, Any]] = {}
    for search in options.searches:
        builds = {system: partial(build, system, folder, BEAMS.get(search), sources) for system in options.systems}
        if search in TEXT_BEAMS:
            builds = {system: partial(build_text, system, folder, TEXT_BEAMS[search], lines) for system in TEXT_SYSTEMS}
        systems = {system: partial(turns.Worker, one, threads=options.threads) for system, one in builds.items()}
        answers, failed = turns.take_turns(systems, [()] * options.rounds)
        answers = {name: parts for name, parts in answers.items() if parts}
        figures[search] = {
            "sentences_per_second": {name: [len(sources) / s for s, _ in parts] for name, parts in answers.items()},
            "setting": {name: parts[0][1] for name, parts in answers.items()},
            "failed": failed,
        }
    return figures


def report(size_name: str, figures: dict[str, dict[str, Any]]) -> str:
    """The markdown section of one size; adds the ratios to the figures."""
    rows, ratios = [], []
    for search, of_search in figures.items():
        rates = of_search["sentences_per_second"]
        for system, r in rates.items():
            rows.append([f"{search}, {system}", turns.format_range(r), of_search["setting"][system]])
        of_search["ratios"] = []
        rates = {name: r for name, r in rates.items() if name not in of_search["failed"]}
        for peer in [name for name in rates if not name.startswith("mtformer")]:
            for ours, rounds in turns.ratios_to_fastest(rates, [peer]).items():
                of_search["ratios"].append({"ours": ours, "peer": peer, "rounds": rounds})
                ratios.append(f"- {search}, {ours}: {turns.format_range(rounds, 2)} times {peer}")
        ratios += [f"- failed: {search}, {system}: {error}" for system, error in of_search["failed"].items()]
    header = ["system", "sentences/s, median (range)", "sentences a batch, workers"]
    table = turns.markdown_table(header, rows)
    return "\n".join([f"## {size_name} ({SIZES[size_name]})", "", table, "", *ratios])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_options(parser, SYSTEMS, default_sizes=["small"], default_rounds=5)
    parser.add_argument("--text", type=Path, default=peers.DEFAULT_DATA / "test_2016_flickr.en.gz",
                        help="what is translated (or .gz)")  # fmt: skip
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=SEARCHES, metavar="SEARCH",
                        help=f"of {' | '.join(SEARCHES)}")  # fmt: skip
    parser.add_argument("--sentences", type=int, help="only so many of its lines")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    tokenizer = peers.train_tokenizer([options.src, options.tgt], options.vocab_size)
    lines = peers.read_lines(options.text)[: options.sentences]
    sources = tokenizer.encode(lines)
    header = {
        **turns.describe_environment(options.threads),
        "settings": f"{len(sources)} sentences, {NUM_TARGET_TOKENS} target tokens forced (eos counted), "
        f"{options.rounds} rounds, vocabulary {options.vocab_size}",
    }
    print("# Decoding speed, sentences per second\n")
    print("\n".join(f"- {name}: {value}" for name, value in header.items()))
    options.systems = turns.without_bf16(options.systems)
    print(flush=True)
    sizes, failed = {}, {}
    for size_name in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MTFORMER_CACHE"] = folder  # of the workers
            make_bundle(replace(SIZES[size_name], vocab_size=options.vocab_size), tokenizer, Path(folder))
            sizes[size_name] = measure(Path(folder), lines, sources, options)
        print(report(size_name, sizes[size_name]) + "\n", flush=True)
        for search, figures in sizes[size_name].items():
            failed |= {f"{size_name}, {search}, {system}": error for system, error in figures["failed"].items()}
        if options.json:
            options.json.write_text(json.dumps({**header, "sizes": sizes}, indent=2) + "\n")
    turns.exit_on_failures(failed)


if __name__ == "__main__":
    main()
