"""Makes kftt_lengths.json: the lengths of real training batches, for benchmarks on machines without the corpus.

    python scripts/bench/kftt_lengths.py ../shared/data/kftt_ja_en/train.ja.gz ../shared/data/kftt_ja_en/train.en.gz

A joint 32k unigram tokenizer is trained on every fourth pair; all are tokenised and filtered as configs/kftt_ja_en.yaml
does; mtformer's data room cuts an epoch into batches of 32,768 tokens; of these, sorted by their longest side, evenly
spaced ones are written as runs of [source tokens, target tokens, pairs in a row], eos not counted.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import peers

from mtformer.config.schema import TokenizerConfig
from mtformer.data.batching.batches import plan_window
from mtformer.text.tokenizer import Tokenizer
from mtformer.text.train import train_tokenizer

BATCH_TOKENS, NUM_BATCHES = 32_768, 16
MAX_TOKENS, MAX_LENGTH_RATIO = 128, 4.0


def lengths(src: Path, tgt: Path, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each side of each pair that passes the filters."""
    sides = [peers.read_lines(file) for file in (src, tgt)]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "joint.model"
        config = TokenizerConfig(vocab_size=vocab_size, character_coverage=0.9995, byte_fallback=True)
        train_tokenizer((line for side in sides for line in side[::4]), config, model)
        tokenizer = Tokenizer.load(model)
        src_N, tgt_N = (np.array([len(ids) for ids in tokenizer.encode(side)], dtype=np.int32) for side in sides)
    shorter, longer = np.minimum(src_N, tgt_N), np.maximum(src_N, tgt_N)
    kept = (shorter > 0) & (longer <= MAX_TOKENS) & (longer <= MAX_LENGTH_RATIO * shorter)
    return src_N[kept], tgt_N[kept]


def runs(pairs: np.ndarray) -> list[list[int]]:
    """(pairs, 2) lengths -> [source, target, how many in a row]."""
    found: list[list[int]] = []
    for src, tgt in pairs.tolist():
        if found and found[-1][:2] == [src, tgt]:
            found[-1][2] += 1
        else:
            found.append([src, tgt, 1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", type=Path)
    parser.add_argument("tgt", type=Path)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    src_N, tgt_N = lengths(options.src, options.tgt, options.vocab_size)
    plan = plan_window(src_N, tgt_N, BATCH_TOKENS, np.random.default_rng(1))
    longest_N = np.maximum(src_N, tgt_N)
    plan.sort(key=lambda indices: int(longest_N[indices].max()))
    chosen = np.linspace(0, len(plan) - 1, 2 * NUM_BATCHES + 1).astype(int)[1::2]
    batches = [runs(np.stack([src_N[plan[number]], tgt_N[plan[number]]], axis=1)) for number in chosen]
    about = (
        f"[source tokens, target tokens, pairs in a row], eos not counted, of {NUM_BATCHES} evenly spaced ones of "
        f"the {len(plan)} batches of {BATCH_TOKENS} tokens of an epoch over KFTT (ja-en, {len(src_N)} pairs, "
        f"{options.vocab_size // 1000}k joint)"
    )
    lines = ",\n".join(json.dumps(batch, separators=(",", ":")) for batch in batches)
    options.out.write_text(f'{{"about": {json.dumps(about)},\n"batches": [\n{lines}\n]}}\n', encoding="utf-8")
    tokens = f"tokens a pair {src_N.mean() + 1:.1f} and {tgt_N.mean() + 1:.1f}"
    print(f"{options.out}: {options.out.stat().st_size} bytes; {tokens}")


if __name__ == "__main__":
    main()
