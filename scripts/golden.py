"""Compare the results of two versions of mtformer through their command lines.

    python scripts/golden.py make OUT FOLDER PYTHON     # once per version, with its interpreter PYTHON
    python scripts/golden.py compare OUT OTHER

`make` trains three small models, prepares the corpora in FOLDER (multi30k/, kftt_ja_en/, tatoeba_en_de/, noisy_en_de/)
with the default filters, translates, scores and exports. `compare` requires that all ids, tensors and texts are equal.
"""

import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load_file

MODELS = {
    "default": [],
    "modern": ["model.positions=rotary", "model.norm=rmsnorm", "model.activation=swiglu", "model.num_kv_heads=2"],
    "postnorm": ["model.norm_position=post"],
}
SMALL = """
model: {d_model: 64, num_heads: 4, d_ff: 128, num_encoder_layers: 2, num_decoder_layers: 2}
tokenizer: {vocab_size: 2000, train_sentences: 40_000}
training: {device: cpu, precision: fp32, batch_tokens: 2048, max_steps: 60, validate_every: 30, log_every: 10,
           warmup_steps: 20, learning_rate: 0.003, average_last: 2, keep_last: 2}
"""
SEARCHES = {
    "greedy": ["--beam-size", "1"],
    "beam5": ["--beam-size", "5"],
    "nbest": ["--beam-size", "4", "--n-best", "3"],
    "constraints": ["--beam-size", "4", "--require", "require.txt"],
    "sampling": ["--sampling", "--top-k", "20", "--seed", "7"],
}
EXPORTS = {"bundle": [*MODELS], "ctranslate2": [*MODELS], "huggingface": ["default", "postnorm"]}
IGNORED_KEYS = {"seconds", "date", "versions", "hardware", "file", "checksum", "sha256"}  # paths and volatile values
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def make(out: Path, data: Path, python: str) -> None:
    out.mkdir(parents=True)
    environment = {**os.environ, "MTFORMER_CACHE": str(out / "cache"), "OMP_NUM_THREADS": "1"}

    def run(*words: object, stdout: str | None = None) -> None:
        command = [python, "-m", "mtformer", *map(str, words)]
        done = subprocess.run(command, cwd=out, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        if stdout is not None:
            (out / stdout).write_text(done.stdout, encoding="utf-8")

    for name, count in (("train", 5000), ("val", 300)):
        for language in ("en", "de"):
            lines = gzip.decompress((data / f"multi30k/{name}.{language}.gz").read_bytes()).splitlines(keepends=True)
            (out / f"{name}.{language}").write_bytes(b"".join(lines[:count]))
    (out / "require.txt").write_text("ein\n\n" * 150)
    sets = "{src_lang: en, tgt_lang: de, train: [{src: train.en, tgt: train.de}], dev: [{src: val.en, tgt: val.de}]}"
    (out / "small.yaml").write_text(f"data: {sets}\n{SMALL}")
    for name, overrides in MODELS.items():
        run("train", "small.yaml", *overrides, "--run-dir", f"runs/{name}")
        for search, options in SEARCHES.items():
            run("translate", f"runs/{name}", "--input", "val.en", *options, stdout=f"{name}.{search}.txt")
        run("translate", f"runs/{name}", "--input", "val.en", "--json", stdout=f"{name}.json.txt")
        run("score", f"runs/{name}", "val.en", "val.de", stdout=f"{name}.score.txt")
        run("eval", f"runs/{name}", "--src", "val.en", "--ref", "val.de", "--output", f"eval/{name}")
    for kind, names in EXPORTS.items():
        for name in names:
            run("export", f"runs/{name}", "--format", kind, "--output", f"exports/{name}.{kind}")
    for name in ("multi30k", "tatoeba_en_de", "noisy_en_de", "kftt_ja_en"):
        src, tgt = ("ja", "en") if name == "kftt_ja_en" else ("en", "de")
        source = f"{{src: '{data}/{name}/train.{src}.gz', tgt: '{data}/{name}/train.{tgt}.gz'}}"
        source = f"{{tsv: '{data}/{name}/paracrawl_v3.tsv'}}" if name == "noisy_en_de" else source
        corpus = f"{{src_lang: {src}, tgt_lang: {tgt}, train: [{source}], filters: {{max_filtered_share: 1.0}}}}"
        (out / f"{name}.yaml").write_text(f"data: {corpus}\n{SMALL}")
        one_step = ("tokenizer.vocab_size=5000", "training.max_steps=1", "training.average_last=0")
        run("train", f"{name}.yaml", *one_step, "--run-dir", f"corpora/{name}")


def stores(folder: Path) -> list[Any]:
    """Return the number of pairs and all source and target ids of each prepared corpus, sorted by size."""
    found = []
    for path in folder.glob("*/store.json"):
        sides: dict[str, list[list[int]]] = {"src": [], "tgt": []}
        skipped = path.with_name("duplicates.bin")
        duplicates = np.fromfile(skipped, "<i8") if skipped.exists() else []
        for part in sorted(path.parent.glob("*.arrow")):
            with pa.OSFile(str(part)) as file:
                table = pa.ipc.open_file(file).read_all()
            for side, ids in sides.items():
                ids += table.column(side).to_pylist()
        kept = np.delete(np.arange(len(sides["src"])), duplicates).tolist()
        found.append((len(kept), *([ids[row] for row in kept] for ids in sides.values())))
    return sorted(found)


def contents(path: Path) -> Any:
    """Return the contents of a file in a form that `difference` can compare; None if it is missing."""
    if not path.exists():
        return None
    if path.suffix == ".safetensors":  # older versions named the modules around_... instead of ..._residual
        tensors = {name.replace("around_attention", "around_self_attention"): t for name, t in load_file(path).items()}
        return {re.sub(r"around_(\w+)", r"\1_residual", name): (t.shape, t.tobytes()) for name, t in tensors.items()}
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    return path.read_text(encoding="utf-8") if path.suffix == ".txt" else path.read_bytes()


def difference(a: Any, b: Any, where: str) -> str | None:
    """Return a description of the first difference; numbers in text and JSON may differ by 1e-5."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted((a.keys() | b.keys()) - IGNORED_KEYS)
        return next((d for key in keys if (d := difference(a.get(key), b.get(key), f"{where}.{key}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for i, (x, y) in pairs if (d := difference(x, y, f"{where}[{i}]"))), None)
    if isinstance(a, str) and isinstance(b, str):
        numbers = [list(map(float, NUMBER.findall(text))) for text in (a, b)]
        same_words = NUMBER.sub("#", a) == NUMBER.sub("#", b)
        if same_words and all(math.isclose(x, y, abs_tol=1e-5) for x, y in zip(*numbers, strict=True)):
            return None
    elif isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, abs_tol=1e-5):
        return None
    return None if a == b else f"{where}: {str(a)[:60]!r} and {str(b)[:60]!r}"


def compare(a: Path, b: Path) -> list[str]:
    patterns = ("*.txt", "eval/*/*/*", "exports/*/**/*", "runs/*/checkpoints/*/model.safetensors", "*/*/tokenizer/*")
    names = {path.relative_to(out) for out in (a, b) for each in patterns for path in out.glob(each) if path.is_file()}
    names = {name for name in names if not name.name.startswith(".") and name.name != "checksums.json"}
    print(f"{len(names)} files and {len(stores(a / 'cache'))} prepared corpora")
    found = [difference(contents(a / name), contents(b / name), str(name)) for name in sorted(names)]
    of_stores = difference(stores(a / "cache"), stores(b / "cache"), "prepared corpora")
    return [one for one in (*found, of_stores) if one is not None]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", out, data, python]:
            make(Path(out).resolve(), Path(data).resolve(), python)
        case ["compare", a, b]:
            sys.exit("\n".join(compare(Path(a), Path(b))) or None)
        case _:
            sys.exit(__doc__)
