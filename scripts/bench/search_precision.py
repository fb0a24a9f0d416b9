"""Compare the BLEU of a run in fp32, bf16 and fp16, with all weights and activations in that type, as on CUDA.

    python scripts/bench/search_precision.py RUN SOURCE REFERENCE [--device cpu] [--beam-size 5]

On a CPU, this emulates search on a GPU, slowly.
"""

import argparse
from pathlib import Path

import torch
from turns import markdown_table

from mtformer.config.loading import load_config
from mtformer.data.corpus.readers import open_bytes
from mtformer.decoding.loading import from_data_report
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights
from mtformer.device import DTYPES, pick_device, set_up_kernels
from mtformer.evaluation.scores import for_language, score
from mtformer.model.transformer import Transformer
from mtformer.run_dir import MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--beam-size", type=int, default=5)
    options = parser.parse_args()
    run, device = RunDir.open(options.run), pick_device(options.device)
    sources, references = read_lines(options.source), read_lines(options.reference)
    config, tokenizers = load_config(run.config).config, TokenizerPair.load(run.tokenizer)
    set_up_kernels(device)
    rows, of_fp32 = [], [""]
    for precision, dtype in DTYPES.items():
        model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        load_weights(model, *find_weights(run, None, config.training.best_metric))
        trained = config.data.filters.max_tokens, from_data_report(run, MULTI_SENTENCE_SHARE) or 0.0
        models = [model.to(device, dtype).eval()]
        translator = Translator(models, tokenizers, config.decoding, *trained, data=config.data)
        with torch.inference_mode():
            found = [one.text for one in translator.translate(sources, beam_size=options.beam_size)]
        if precision == "fp32":
            of_fp32 = found
        (bleu,) = score(found, references, for_language(config.evaluation, config.data.tgt_lang), metrics=("bleu",))
        changed = sum(a != b for a, b in zip(found, of_fp32, strict=True))
        rows.append([precision, f"{bleu.value:.2f}", f"{changed} of {len(sources)}"])
    print(markdown_table(["precision", "BLEU", "lines that differ from fp32"], rows))


def read_lines(path: Path) -> list[str]:
    with open_bytes(path) as file:
        return file.read().decode().splitlines()


if __name__ == "__main__":
    main()
