"""Compare an installed Argos Translate package with CTranslate2 and with mtformer, line by line.

    mtformer export RUN --format argos --output en_de.argosmodel
    mtformer export RUN --format ctranslate2 --output en_de.ct2
    mtformer translate en_de.ct2 --beam-size 4 --length-penalty 0.2 --precision auto < SOURCE > OURS
    python scripts/parity_argos.py en_de.argosmodel en_de.ct2 SOURCE OURS

The last command needs an environment of its own, with Argos Translate (and PyTorch, which it imports, but not spaCy):

    pip install ctranslate2 sentencepiece minisbd packaging "torch==2.13.0" emoji requests networkx tqdm protobuf numpy
    pip install --no-deps argostranslate==1.11.0 stanza==1.10.1

The package is installed into a temporary folder. Each line counts as one sentence, so no model for sentence boundaries
is downloaded. Argos Translate searches with beam 4, length penalty 0.2, at most 256 tokens, unknown tokens replaced
with the most-attended source piece, and compute type auto (on most CPUs int8, for any stored type).
"""

import argparse
import os
import tempfile
from pathlib import Path

SEARCH = {"beam_size": 4, "length_penalty": 0.2, "replace_unknowns": True, "max_batch_size": 32, "batch_type": "tokens"}


class WholeLine:
    """Splitter that returns its text as the only sentence."""

    def split_sentences(self, text: str) -> list[str]:
        return [text]


def with_argos(package: Path, lines: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as home:
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):  # read when the library is imported
            os.environ[name] = home
        import argostranslate.package
        import argostranslate.translate

        argostranslate.package.install_from_path(package)
        [installed] = argostranslate.package.get_installed_packages()
        print(f"installed {installed}, with {len(installed.get_readme())} characters of README")
        languages = {one.code: one for one in argostranslate.translate.get_installed_languages()}
        cached = languages[installed.from_code].get_translation(languages[installed.to_code])
        cached.underlying.sentencizer = WholeLine()
        return [cached.translate(line) for line in lines]


def with_ctranslate2(export: Path, lines: list[str]) -> list[str]:
    import ctranslate2
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(export / "tokenizer" / "joint.model"))
    model = ctranslate2.Translator(str(export), compute_type="auto")
    found = [model.translate_batch([tokenizer.encode(line, out_type=str)], **SEARCH)[0] for line in lines]
    print(f"CTranslate2 computes in {model.compute_type}")
    return [tokenizer.decode(one.hypotheses[0]) for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("package", "export", "source", "ours"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    lines = options.source.read_text(encoding="utf-8").splitlines()
    argos = with_argos(options.package, lines)
    others = {
        "CTranslate2 with the same search settings": with_ctranslate2(options.export, lines),
        "mtformer translate": options.ours.read_text(encoding="utf-8").splitlines(),
    }
    for name, found in others.items():
        equal = sum(a == b for a, b in zip(argos, found, strict=True))
        print(f"{name}: {equal} of {len(lines)} lines equal those of Argos Translate")
    if argos != others["CTranslate2 with the same search settings"]:
        raise SystemExit("the translations differ")


if __name__ == "__main__":
    main()
