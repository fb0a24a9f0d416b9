"""Write the lowercased, Moses-tokenized files of Multi30k.

    python scripts/moses_lowercase.py FOLDER OUTPUT

The steps are those of the data set's own script for its folder `tok`, which Wu et al. 2021 (arXiv 2105.14462) and
others train on: lowercase, normalize punctuation, tokenize. FOLDER contains {train,val,test_2016_flickr}.{en,de}, plain
or .gz; the files in OUTPUT have the same names, without .gz. sacremoses is needed, which follows Moses' Perl scripts.
"""

import gzip
import sys
from pathlib import Path

LANGUAGES = ("en", "de")


def tokenize(path: Path, language: str) -> str:
    """Return the lines of a file, lowercased and tokenized."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer = MosesPunctNormalizer(language)
    tokenizer = MosesTokenizer(language)
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    tokenized = []
    for line in content.decode("utf-8").removesuffix("\n").split("\n"):
        normalized = normalizer.normalize(line.lower())
        tokenized.append(tokenizer.tokenize(normalized, return_str=True))
    return "".join(f"{line}\n" for line in tokenized)


def corpus_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their names without .gz."""
    paths = [path for path in folder.iterdir() if path.name.removesuffix(".gz").endswith(LANGUAGES)]
    return {path.name.removesuffix(".gz"): path for path in sorted(paths)}


def main() -> None:
    """Write the tokenized files; files that exist are kept."""
    folder, output = map(Path, sys.argv[1:])
    output.mkdir(parents=True, exist_ok=True)
    for name, path in corpus_files(folder).items():
        target = output / name
        if not target.exists():
            temporary = output / f"{name}.tmp"
            temporary.write_text(tokenize(path, language=name.rpartition(".")[2]), encoding="utf-8")
            temporary.replace(target)


if __name__ == "__main__":
    main()
