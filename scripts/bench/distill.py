"""Measure `mtformer distill`: students against their teacher, and against the same model trained on the references.

    python scripts/bench/distill.py TEACHER FOLDER STUDENT.yaml [STUDENT.yaml ...] [section.key=value ...]

TEACHER is a run. Each STUDENT.yaml is trained twice, with the same number of steps: by `mtformer train` on its own
corpora, and by `mtformer distill`. The overrides apply to all students. The scores are those of the first test set of
the config, and the speed is the median of three translations of this set with the decoding settings of the student, by
`Translator.translate` after a first call, on an otherwise idle machine. Interrupted trainings resume.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from mtformer.config.loading import dump_config, load_config
from mtformer.config.schema import Config
from mtformer.decoding.translator import Translator
from mtformer.evaluation.evaluate import named_sets
from mtformer.evaluation.scores import for_language, score
from mtformer.files import write_text
from mtformer.run_dir import RunDir

ROUNDS = 3


def mtformer(*words: str | Path) -> None:
    """Run a command, without its test scores on stdout."""
    subprocess.run([sys.executable, "-m", "mtformer", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def measure(run: Path, config: Config) -> list[str]:
    """Return BLEU, chrF2++, lines per second and the number of parameters, as text."""
    test = named_sets(config.data.test, config.data)[0]
    translator = Translator.load(run, device=config.training.device)
    translator = translator.with_decoding(config.decoding)
    seconds = []
    found = translator.translate(test.sources)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        translator.translate(test.sources)
        seconds.append(time.perf_counter() - start)
    settings = for_language(config.evaluation, test.tgt_lang)
    scores = score([one.text for one in found], test.references[0], settings, ("bleu", "chrf"))
    size = sum(weights.numel() for model in translator.models for weights in model.parameters())
    speed = len(test.sources) / statistics.median(seconds)
    return [*(f"{one.value:.2f}" for one in scores), f"{speed:,.0f}", f"{size:,}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, metavar="TEACHER")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("words", nargs="+", metavar="STUDENT.yaml or section.key=value")
    options = parser.parse_args()
    overrides = [word for word in options.words if "=" in word]
    runs = {"teacher": options.teacher}
    corpus = None
    for path in (Path(word) for word in options.words if "=" not in word):
        config = load_config(path, overrides).config
        resolved = options.folder / f"{path.stem}.yaml"
        write_text(resolved, dump_config(config))
        by_references, distilled = (options.folder / f"{path.stem}-{kind}" for kind in ("references", "distilled"))
        mtformer("train", resolved, "--run-dir", by_references, "--resume", "auto")
        if corpus is not None and not distilled.exists():  # the translations of the teacher are the same
            shutil.copytree(corpus, RunDir(distilled).corpus)
        mtformer("distill", options.teacher, "--config", resolved, "--run-dir", distilled)
        corpus = RunDir(distilled).corpus
        runs |= {f"{path.stem}, references": by_references, f"{path.stem}, distilled": distilled}
    print("| model | BLEU | chrF2++ | lines/s | parameters |", "|---|---:|---:|---:|---:|", sep="\n")
    for name, run in runs.items():
        print(f"| {name} | {' | '.join(measure(run, config))} |")


if __name__ == "__main__":
    main()
