"""Measure `mtformer adapt`: the gain on new text, compared with full fine-tuning, and the loss on old text.

    python scripts/bench/adapt.py RUN FOLDER --old OLD_PREFIXES --new NEW_PREFIXES [--sizes 500 2000] [--seeds 1 2 3]

OLD_PREFIXES are the dev and the test set of the corpus of RUN; NEW_PREFIXES are the training, dev and test set of the
new corpus; each is the path of two files without the language, such as data/val for data/val.en.gz and data/val.de.gz.
For each size and seed, random pairs of the new training set are given to `mtformer adapt`. Full fine-tuning has the
same config and steps, but neither the old corpora nor interpolation. The scores are BLEU with the decoding settings of
RUN. FOLDER has the trainings and their scores, so the same command continues after an interruption.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from mtformer.cli.progress import TrainingProgress
from mtformer.config.loading import load_config
from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.translator import Translator
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.train import train_experiment
from mtformer.files import write_text
from mtformer.run_dir import RunDir

Files = tuple[Path, Path]


def files_of(prefix: str, languages: tuple[str, str]) -> Files:
    """Return the two files with a prefix: plain, or compressed with gzip."""
    found = []
    for language in languages:
        names = [Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")]
        found.append(next((name for name in names if name.exists()), names[0]))
    return found[0], found[1]


def bleu(run: Path, checkpoint: str | None, sets: list[Files], precision: str) -> list[float]:
    """Return the BLEU of a run on each set."""
    translator = Translator.load(run, checkpoint, precision=precision)
    config = load_config(RunDir(run).config).config
    evaluation = for_language(config.evaluation, config.data.tgt_lang)
    values = []
    for src, tgt in sets:
        found = [one.text for one in translator.translate(read_lines(src))]
        values.append(score(found, read_lines(tgt), evaluation, ["bleu"])[0].value)
    return values


def adapt(run: Path, new_tsv: Path, new_dev: Files, old_dev: Files, folder: Path, seed: int) -> None:
    """Adapt a run with the command."""
    command = [sys.executable, "-m", "mtformer", "adapt", str(run), f"training.seed={seed}"]
    command += ["--train", str(new_tsv), "--dev", ",".join(map(str, new_dev)), "--run-dir", str(folder)]
    subprocess.run([*command, "--old-dev", ",".join(map(str, old_dev))], check=True)


def fine_tune(adapted: Path, folder: Path) -> None:
    """Train with the config of an adaptation, without the old corpora."""
    config = RunDir(adapted).config
    old = [name for name in load_config(config).config.data.corpora if name != "new"]
    without = load_config(config, [f"data.corpora.{name}=null" for name in old]).config
    with TrainingProgress() as progress:
        train_experiment(without, RunDir(folder), progress, "auto", overwrite=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--old", nargs=2, required=True, metavar=("DEV", "TEST"))
    parser.add_argument("--new", nargs=3, required=True, metavar=("TRAIN", "DEV", "TEST"))
    parser.add_argument("--sizes", nargs="+", type=int, default=[500, 2000, 5000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    data = load_config(RunDir(options.run).config).config.data
    languages = data.src_lang, data.tgt_lang
    old_dev, old_test = (files_of(prefix, languages) for prefix in options.old)
    new_train, new_dev, new_test = (files_of(prefix, languages) for prefix in options.new)
    sets = [new_test, old_dev, old_test]
    pairs = list(zip(*map(read_lines, new_train), strict=True))
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if "before" not in results:
        results["before"] = bleu(options.run, None, sets, options.precision)
    for size in options.sizes:
        for seed in options.seeds:
            name = f"{size}-{seed}"
            scores = results.setdefault(name, {})
            adapted, full = options.folder / f"adapt-{name}", options.folder / f"full-{name}"
            if "adapt" not in scores:
                new_tsv = options.folder / f"new-{name}.tsv"
                chosen = random.Random(seed).sample(pairs, size)
                write_text(new_tsv, "".join(f"{src}\t{tgt}\n" for src, tgt in chosen if "\t" not in src + tgt))
                adapt(options.run, new_tsv, new_dev, old_dev, adapted, seed)
                scores["adapt"] = bleu(adapted, None, sets, options.precision)
                write_text(file, json.dumps(results, indent=1) + "\n")
            if "full" not in scores:
                fine_tune(adapted, full)
                scores["full"] = bleu(full, "last", sets, options.precision)
                write_text(file, json.dumps(results, indent=1) + "\n")
    before = results["before"]
    print(f"before: new test {before[0]:.2f}, old dev {before[1]:.2f}, old test {before[2]:.2f} BLEU; changes:")
    print("| pairs | new test, full | new test, adapt | share of the gain | old dev | old test | old test, full |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for size in options.sizes:
        changes = {
            kind: [
                fmean(results[f"{size}-{seed}"][kind][which] - before[which] for seed in options.seeds)
                for which in range(3)
            ]
            for kind in ("adapt", "full")
        }
        own, full = changes["adapt"], changes["full"]
        cells = [f"{full[0]:+.2f}", f"{own[0]:+.2f}", f"{own[0] / full[0]:.0%}", f"{own[1]:+.2f}", f"{own[2]:+.2f}"]
        print(f"| {size:,} | {' | '.join(cells)} | {full[2]:+.2f} |")


if __name__ == "__main__":
    main()
