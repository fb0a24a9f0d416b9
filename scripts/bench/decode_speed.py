"""Compare the decoding speed of mtformer, Hugging Face `generate` and CTranslate2, in sentences per second.

    python scripts/bench/decode_speed.py --json decode_speed.json

Models of the same shape with random weights translate the same token ids, sorted by length, into exactly 16 target
tokens each, with greedy search and with beam size 5. Each system uses the batch size and the division of threads that
are fastest in a short scan. The systems take turns at translating the whole text. Requires the extras `bench` and
`ctranslate2`, and an otherwise idle machine.

The searches "greedy, text" and "beam 5, text" measure text-to-text translation in int8: `Translator` with the
ctranslate2 backend and default settings, compared to direct use of CTranslate2 and SentencePiece with the fastest
settings.

Systems in bf16 are skipped on processors without fast bf16. If a system fails, the others are still measured, and the
exit code is 1.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peers
import torch
import turns
from peers import EOS, PAD, SIZES, Size
from safetensors.torch import save_file
from torch import Tensor

from mtformer.config.loading import dump_config
from mtformer.config.schema import Config, DecodingConfig
from mtformer.decoding.ctranslate2.conversion import to_spec
from mtformer.decoding.search import transformer_engine
from mtformer.decoding.search.beam import beam_search
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.rules import LengthBounds
from mtformer.decoding.search.sampling import generate
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.search.steps import SearchBatch
from mtformer.decoding.translator import Translator
from mtformer.device import DTYPES, set_up_memory
from mtformer.export.bundle import export
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir

BEAMS = {"greedy": 1, "beam 5": 5}
SEARCHES = [*BEAMS, *(f"{name}, text" for name in BEAMS)]
SYSTEMS = (
    *("mtformer-fp32", "mtformer-bf16"),
    *("huggingface-fp32", "huggingface-bf16"),
    *("ctranslate2-fp32", "ctranslate2-int8"),
)
TEXT_SYSTEMS = ("mtformer-ctranslate2-int8", "ctranslate2-sentencepiece-int8")
NUM_TARGET_TOKENS = 16
BATCH_SIZES = (32, 64, 128, 256)
EOS_BIAS = 50.0
"""Bias of eos that makes translations end at the minimum length, before the maximum."""

Decode = Callable[[Tensor, Tensor], Any]  # src_BS, src_lengths_B
Setting = tuple[int, int, str] | None
"""Number of workers that share the threads, batch size and its unit; None: the settings of the system."""
System = tuple[Callable[[Sequence[Any], Setting], int], Sequence[Setting]]
"""Function that translates all items (ids without eos, or lines) and counts target tokens; settings to try."""


# ---- decoding a batch of ids ----------------------------------------------------------------------------------------


def mtformer_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu",
    transformer: Transformer | None = None,
) -> Decode:  # fmt: skip
    """Return the search of mtformer with its own model, or with this one, which is modified."""
    set_up_memory()
    transformer = transformer or peers.transformer(size, dropout=0.0)
    model = InferenceModel.prepare(transformer, torch.device(device), precision)
    # The ratios are large, so only max_length has an effect; it does not include eos.
    settings = DecodingConfig(
        beam_size=num_beams, max_length_ratio=1000, min_length_ratio=1000, max_length=num_tokens - 1
    )

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> list[Hypothesis]:
        bounds = LengthBounds(settings, src_lengths_B, [0] * len(src_BS), num_tokens)
        decode_batch = generate if num_beams == 1 else beam_search
        batch = SearchBatch(src_BS, src_lengths_B, bounds)
        best = [found[0] for found in decode_batch([model], batch, settings)]
        if any(len(hypothesis.tokens) != num_tokens - 1 for hypothesis in best):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")
        return best

    return decode


def marian_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """Return Hugging Face `generate` with a Marian model."""
    from transformers import GenerationConfig

    model = peers.marian(size).eval().to(device)
    model = model.to(DTYPES[precision])
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

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> None:
        output = model.generate(input_ids=src_BS, attention_mask=src_BS != PAD, generation_config=settings)
        if output.size(1) != 1 + num_tokens or not bool((output == EOS).sum(1).eq(1).all()):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")

    return decode


def ctranslate2_system(
    size: Size, precision: str, num_beams: int, num_tokens: int = NUM_TARGET_TOKENS, device: str = "cpu"
) -> Decode:
    """Return CTranslate2 with mtformer's model, converted to its format."""
    import ctranslate2

    names = ["<pad>", "<unk>", "<s>", "</s>", *(f"piece{number}" for number in range(4, size.vocab_size))]
    tokenizer = SimpleNamespace(vocabulary=lambda: names)
    spec = to_spec(peers.transformer(size, dropout=0.0), SimpleNamespace(src=tokenizer, tgt=tokenizer))
    spec.validate()
    spec.optimize(None)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        compute_type = {"fp32": "float32", "fp16": "float16"}[precision]
        translator = ctranslate2.Translator(folder, device=device, compute_type=compute_type)

    def decode(src_BS: Tensor, src_lengths_B: Tensor) -> None:
        rows = zip(src_BS.tolist(), src_lengths_B.tolist(), strict=True)
        sources = [[names[token] for token in row[: length - 1]] for row, length in rows]  # CTranslate2 adds eos
        limits = dict.fromkeys(("min_decoding_length", "max_decoding_length"), num_tokens - 1)  # without eos
        found = translator.translate_batch(sources, beam_size=num_beams, **limits)
        if any(len(one.hypotheses[0]) != num_tokens - 1 for one in found):
            raise RuntimeError(f"not {num_tokens} target tokens for each sentence")

    return decode


# ---- decoding a whole text -----------------------------------------------------------------------------------------


def make_bundles(size: Size, tokenizer: Any, folder: Path) -> None:
    """Write bundles with random weights, for ids and for text, and their exports to CTranslate2."""
    run, text_run = (write_bundle(size, tokenizer, folder / name, name == "text") for name in ("ids", "text"))
    for kind in (None, "int8"):
        export(run, folder / f"ids-{kind or 'fp32'}", None, "ctranslate2", kind)
    export(text_run, folder / "text-int8", None, "ctranslate2", None)


def write_bundle(size: Size, tokenizer: Any, folder: Path, has_bias: bool) -> RunDir:
    """Write a bundle with random weights; with a bias, eos is generated as soon as it is allowed."""
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


def batches_of(sources: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[list[int]]]:
    """Yield batches of the sources with eos, sorted by length."""
    by_length = [[*ids, EOS] for ids in sorted(sources, key=len)]
    yield from (by_length[first : first + batch_size] for first in range(0, len(by_length), batch_size))


def mtformer_on_ids(size: Size, folder: Path, precision: str, num_beams: int) -> System:
    """Return the engine of mtformer, as used by `mtformer translate`."""
    translator = Translator.load(folder / "ids", device="cpu", precision=precision)
    fixed = NUM_TARGET_TOKENS - 1
    settings = DecodingConfig(
        beam_size=num_beams, min_length=fixed, max_length=fixed, max_length_ratio=1000, validation_beam_size=1
    )

    def translate(sources: Sequence[Sequence[int]], setting: Setting) -> int:
        transformer_engine.MAX_WORKERS, batch_size, _ = setting
        batches = [[Segment(ids) for ids in batch] for batch in batches_of(sources, batch_size)]
        found = translator.engine.search(batches, settings)
        return sum(len(n_best[0].tokens) + 1 for n_bests in found for n_best in n_bests)

    return translate, scan({1, torch.get_num_threads()})


def huggingface_on_ids(size: Size, folder: Path, precision: str, num_beams: int) -> System:
    """Return Hugging Face `generate`; `marian_system` checks the number of tokens."""
    decode = marian_system(size, precision, num_beams)

    def translate(sources: Sequence[Sequence[int]], setting: Setting) -> int:
        with torch.inference_mode():
            for batch in batches_of(sources, setting[1]):
                rows, lengths = [torch.tensor(ids) for ids in batch], [len(ids) for ids in batch]
                decode(torch.nn.utils.rnn.pad_sequence(rows, True, PAD), torch.tensor(lengths))
        return NUM_TARGET_TOKENS * len(sources)

    return translate, scan({1})


def ctranslate2_on(is_text: bool, size: Size, folder: Path, precision: str, num_beams: int) -> System:
    """Return CTranslate2 for pieces, or CTranslate2 with SentencePiece for text."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "text/tokenizer/joint.model"))
    threads, path = torch.get_num_threads(), folder / f"{'text' if is_text else 'ids'}-{precision}"
    compute_type = {"fp32": "float32", "int8": "int8_float32"}[precision]

    @cache
    def model(workers: int) -> Any:
        intra = threads // workers
        return ctranslate2.Translator(str(path), compute_type=compute_type, inter_threads=workers, intra_threads=intra)

    def translate(items: Sequence[Any], setting: Setting) -> int:
        workers, batch_size, unit = setting
        if is_text:
            pieces = processor.encode(list(items), out_type=str, num_threads=threads)
        else:
            pieces = [processor.id_to_piece(list(ids)) for ids in sorted(items, key=len)]
        found = model(workers).translate_batch(
            pieces,
            beam_size=num_beams,
            max_batch_size=batch_size,
            batch_type=unit,
            min_decoding_length=NUM_TARGET_TOKENS - 1,
            max_decoding_length=NUM_TARGET_TOKENS - 1 + is_text,  # in the text model, the bias forces eos
        )
        hypotheses = [one.hypotheses[0] for one in found]
        if is_text:
            processor.decode(hypotheses)
        return sum(len(hypothesis) + 1 for hypothesis in hypotheses)

    return translate, scan({1, threads}, (256, 512, 1024, 2048) if is_text else ())


def mtformer_on_text(size: Size, folder: Path, precision: str, num_beams: int) -> System:
    """Return a `Translator` with the ctranslate2 backend, which makes its own batches."""
    translator = Translator.load(folder / "text", device="cpu", precision=precision, backend="ctranslate2")
    translator = translator.with_decoding(
        beam_size=num_beams, min_length=NUM_TARGET_TOKENS - 1, max_length=NUM_TARGET_TOKENS
    )
    return lambda lines, _: sum(len(one.tokens) + 1 for one in translator.translate(lines)), [None]


def scan(workers: set[int], tokens: Sequence[int] = ()) -> list[Setting]:
    """Return the settings to try, to find the fastest."""
    batches = [*((size, "examples") for size in BATCH_SIZES), *((size, "tokens") for size in tokens)]
    return [(number, *batch) for number in sorted(workers) for batch in batches]


ON: dict[str, Callable[[Size, Path, str, int], System]] = {
    "mtformer": mtformer_on_ids,
    "huggingface": huggingface_on_ids,
    "ctranslate2": partial(ctranslate2_on, False),
    "mtformer-ctranslate2": mtformer_on_text,
    "ctranslate2-sentencepiece": partial(ctranslate2_on, True),
}


def build(
    system: str, size: Size, folder: Path, num_beams: int, items: Sequence[Any]
) -> Callable[[], tuple[float, str]]:
    """Return a function that translates all items and returns the seconds and the best setting; called in a worker."""
    family, precision = system.rsplit("-", 1)
    threads = torch.get_num_threads()  # must be read before CTranslate2 changes the OpenMP setting
    translate, settings = ON[family](size, folder, precision, num_beams)

    def seconds(some: Sequence[Any], setting: Setting) -> float:
        begin = time.perf_counter()
        if translate(some, setting) != NUM_TARGET_TOKENS * len(some):
            raise RuntimeError(f"not {NUM_TARGET_TOKENS} target tokens for each sentence")
        return time.perf_counter() - begin

    seconds(items[::4], settings[-1])  # warm-up
    best = min(settings, key=partial(seconds, items[::2])) if len(settings) > 1 else settings[0]
    text = f"{best[1]} {best[2]}, {best[0]} x {threads // best[0]} threads" if best else "default settings"
    return lambda: (seconds(items, best), text)


# ---- measurement ----------------------------------------------------------------------------------------------------


def measure(
    size: Size, folder: Path, lines: Sequence[str], sources: Sequence[Sequence[int]], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return sentences per second by search, system and round, the settings, and the errors of failed systems."""
    figures: dict[str, dict[str, Any]] = {}
    for search in options.searches:
        is_text, num_beams = search.endswith(", text"), BEAMS[search.removesuffix(", text")]
        items = lines if is_text else sources
        systems = {
            system: partial(turns.Worker, build, system, size, folder, num_beams, items, threads=options.threads)
            for system in (TEXT_SYSTEMS if is_text else options.systems)
        }
        answers, failed = turns.take_turns(systems, [()] * options.rounds)
        answers = {name: parts for name, parts in answers.items() if parts}
        figures[search] = {
            "sentences_per_second": {name: [len(items) / s for s, _ in parts] for name, parts in answers.items()},
            "setting": {name: parts[0][1] for name, parts in answers.items()},
            "failed": failed,
        }
    return figures


def report(size_name: str, figures: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown section for one model size, and add the ratios to the results."""
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
    header = ["system", "sentences/s, median (range)", "batch size, workers"]
    table = turns.markdown_table(header, rows)
    return "\n".join([f"## {size_name} ({SIZES[size_name]})", "", table, "", *ratios])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_options(parser, SYSTEMS, default_sizes=["small"], default_rounds=5)
    parser.add_argument("--text", type=Path, default=peers.DEFAULT_DATA / "test_2016_flickr.en.gz",
                        help="text to translate, plain or .gz")  # fmt: skip
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=SEARCHES, metavar="SEARCH",
                        help=f"searches to measure: {' | '.join(SEARCHES)}")  # fmt: skip
    parser.add_argument("--sentences", type=int, help="number of lines to translate")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    tokenizer = peers.train_tokenizer([options.src, options.tgt], options.vocab_size)
    lines = peers.read_lines(options.text)[: options.sentences]
    sources = tokenizer.encode(lines)
    header = {
        **turns.describe_environment(options.threads),
        "settings": f"{len(sources)} sentences, exactly {NUM_TARGET_TOKENS} target tokens (including eos), "
        f"{options.rounds} rounds, vocabulary {options.vocab_size}",
    }
    print("# Decoding speed, sentences per second\n")
    print("\n".join(f"- {name}: {value}" for name, value in header.items()))
    options.systems = turns.without_bf16(options.systems)
    print(flush=True)
    sizes, failed = {}, {}
    for size_name in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MTFORMER_CACHE"] = folder  # inherited by the workers
            size = replace(SIZES[size_name], vocab_size=options.vocab_size)
            make_bundles(size, tokenizer, Path(folder))
            sizes[size_name] = measure(size, Path(folder), lines, sources, options)
        print(report(size_name, sizes[size_name]) + "\n", flush=True)
        for search, figures in sizes[size_name].items():
            failed |= {f"{size_name}, {search}, {system}": error for system, error in figures["failed"].items()}
        if options.json:
            options.json.write_text(json.dumps({**header, "sizes": sizes}, indent=2) + "\n")
    turns.exit_on_failures(failed)


if __name__ == "__main__":
    main()
