"""Speed and BLEU of the values of `decoding.early_stopping`, with our own search and with CTranslate2.

python scripts/bench/early_stopping.py RUN SOURCE REFERENCE --rounds 3

Each row is a backend with a value. The settings take turns in each round; seconds are medians of the time to translate
the whole file with beam 5. The columns "higher" and "lower" count the lines whose score is higher or lower than with
`ended`; scores of different backends are not compared.
"""

import argparse
import statistics
import time

from mtformer.config.schema import EvaluationConfig
from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.evaluation.scores import for_language, score

SETTINGS = [
    ("mtformer", "ended"),
    ("mtformer", "auto"),
    ("mtformer", "certain"),
    ("ctranslate2", "ended"),
    ("ctranslate2", "auto"),
]
BEAM_SIZE = 5
MIN_DIFFERENCE = 1e-4
"""Difference from which scores count as different."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source")
    parser.add_argument("reference")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    sources = read_lines(arguments.source)
    references = read_lines(arguments.reference)
    translators = {
        backend: Translator.load(arguments.run, backend=backend, precision="fp32") for backend, _ in SETTINGS
    }
    seconds: dict[tuple[str, str], list[float]] = {setting: [] for setting in SETTINGS}
    translations: dict[tuple[str, str], list[Translation]] = {}
    for _ in range(arguments.rounds):
        for backend, value in SETTINGS:
            start = time.perf_counter()
            found = translators[backend].translate(sources, beam_size=BEAM_SIZE, early_stopping=value)
            seconds[backend, value].append(time.perf_counter() - start)
            translations[backend, value] = found

    data = translators["mtformer"].data
    assert data is not None
    config = for_language(EvaluationConfig(), data.tgt_lang)
    print(f"{len(sources)} lines, {arguments.rounds} rounds, beam {BEAM_SIZE}, fp32")
    for backend, value in SETTINGS:
        found = translations[backend, value]
        pairs = list(zip(found, translations[backend, "ended"], strict=True))
        num_higher = sum(one.score > other.score + MIN_DIFFERENCE for one, other in pairs)
        num_lower = sum(one.score < other.score - MIN_DIFFERENCE for one, other in pairs)
        bleu = score([one.text for one in found], references, config)[0].value
        times = seconds[backend, value]
        print(
            f"{backend:<12} {value:<8} {statistics.median(times):8.2f} s ({min(times):.2f} to {max(times):.2f})  "
            f"BLEU {bleu:.2f}  higher {num_higher}  lower {num_lower}",
            flush=True,
        )


if __name__ == "__main__":
    main()
