"""Compare the translations of CTranslate2 and mtformer: both translate a file with the same run.

    python scripts/parity_ctranslate2.py RUN SRC

Float32, on the CPU, by default beam 5 and length penalty 1. Exit code 1 if a line differs.
"""

import argparse
import sys
from pathlib import Path

from mtformer.decoding.translator import Translator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory or bundle")
    parser.add_argument("source", type=Path, help="file to translate")
    parser.add_argument("--checkpoint", help="as for `mtformer export`")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    options = parser.parse_args()
    settings = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    lines = options.source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    own, other = (
        Translator.load(options.run, options.checkpoint, "cpu", "fp32", backend).translate(lines, **settings)
        for backend in ("mtformer", "ctranslate2")
    )
    differing = [number for number, pair in enumerate(zip(own, other, strict=True)) if pair[0].tokens != pair[1].tokens]
    for number in differing[:10]:
        print(f"line {number + 1}")
        for name, one in (("mtformer", own[number]), ("CTranslate2", other[number])):
            print(f"  {name:12} {one.score:9.5f}  {one.text}")
    largest = max((abs(ours.score - theirs.score) for ours, theirs in zip(own, other, strict=True)), default=0.0)
    print(f"equal lines: {len(lines) - len(differing)} of {len(lines)}")
    print(f"largest difference of scores: {largest:.2e}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
