"""Compare CTranslate2 exports of a run with and without a vocabulary map: sentences per second and BLEU.

    python scripts/bench/vocabulary_map.py RUN SOURCE REFERENCE [--rounds 5] [--threads 2] [--beams 1 5]

The run's training data must be where its config says. The exports take turns at translating the whole text with
`mtformer.Translator`, in fp32 and in int8. Speed requires an otherwise idle machine; BLEU does not.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import turns

from mtformer.config.loading import load_config
from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.translator import Translator
from mtformer.evaluation.scores import for_language, score
from mtformer.export.bundle import export as write_export
from mtformer.run_dir import RunDir

Answer = tuple[float, list[str]]


def build(export: Path, precision: str, source: Path) -> Callable[[int], Answer]:
    """Return a function that translates the text with a beam size, and returns the seconds and the translations."""
    translator, lines = Translator.load(export, device="cpu", precision=precision), read_lines(source)
    translator.translate(lines[:50])

    def translate(beam_size: int) -> Answer:
        start = time.perf_counter()
        found = [one.text for one in translator.translate(lines, beam_size=beam_size)]
        return time.perf_counter() - start, found

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "source", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    references, systems = read_lines(options.reference), {}
    config = load_config(RunDir.open(options.run).config).config
    evaluation = for_language(config.evaluation, config.data.tgt_lang)
    with tempfile.TemporaryDirectory() as folder:
        for has_map in (False, True):
            export = Path(folder, "map" if has_map else "plain")
            write_export(RunDir.open(options.run), export, None, "ctranslate2", vocabulary_map=has_map)
            for precision in ("fp32", "int8"):
                arguments = (build, export, precision, options.source)
                systems[f"{export.name} {precision}"] = partial(turns.Worker, *arguments, threads=options.threads)
        questions = [(beam,) for beam in options.beams for _ in range(options.rounds)]
        answers, failed = turns.take_turns(systems, questions)
    turns.exit_on_failures(failed)
    rows = []
    for precision in ("fp32", "int8"):
        for place, beam in enumerate(options.beams):
            rounds = slice(place * options.rounds, (place + 1) * options.rounds)
            plain, mapped = (answers[f"{name} {precision}"][rounds] for name in ("plain", "map"))
            for name, found in {"plain": plain, "map": mapped}.items():
                [bleu] = score(found[0][1], references, evaluation, metrics=("bleu",))
                differ = sum(a != b for a, b in zip(found[0][1], plain[0][1], strict=True))
                speed = turns.format_range([len(references) / seconds for seconds, _ in found])
                ratio = statistics.median(a / b for (a, _), (b, _) in zip(plain, found, strict=True))
                title = f"{name}, {precision}, beam {beam}"
                rows.append([title, f"{bleu.value:.2f}", str(differ), speed, f"{ratio:.2f}"])
    print(*(f"- {key}: {value}" for key, value in turns.describe_environment(options.threads).items()), sep="\n")
    print(turns.markdown_table(["export", "BLEU", "lines that differ", "sentences per second", "ratio"], rows))


if __name__ == "__main__":
    main()
