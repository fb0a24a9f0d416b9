"""Languages by the names of files."""

import pytest

from mtformer.experiment.file_languages import languages_of_files

TWO_FILES = [
    ("train.en", "train.de", "en", "de"),
    ("train.ja.gz", "train.ko.xz", "ja", "ko"),
    ("data/corpus.en-sw.en", "data/corpus.en-sw.sw", "en", "sw"),
    ("europarl-v7.de-en.en", "europarl-v7.de-en.de", "en", "de"),
    ("OpenSubtitles.en-zh_CN.en", "OpenSubtitles.en-zh_CN.zh_CN", "en", "zh_CN"),
    ("train_hi.txt", "train_ta.txt", "hi", "ta"),
    ("train_pt_BR.txt", "train_en.txt", "pt_BR", "en"),
    ("fr_test", "ar_test", "fr", "ar"),
    ("am/train.txt", "ti/train.txt", "am", "ti"),
    ("english.txt", "Türkçe.txt", "en", "tr"),
    ("German.txt", "ไทย.txt", "de", "th"),
    ("a.zho_Hans", "a.eng_Latn", "zho_Hans", "eng_Latn"),
    ("flores.ben_Beng.dev", "flores.amh_Ethi.dev", "ben_Beng", "amh_Ethi"),
    ("a.sr-Latn", "a.sr-Cyrl", "sr-Latn", "sr-Cyrl"),
    ("train.cz", "train.jp", "cs", "ja"),  # country codes
    ("train.EN", "train.DE", "en", "de"),
    ("train.en", "train.nds", "en", "nds"),
    ("train.ceb", "train.haw", "ceb", "haw"),
    ("train.src", "train.tgt", None, None),
    ("train.src", "train.en", None, "en"),
    ("a.en", "b.en", None, None),
    ("my_a.txt", "my_b.txt", None, None),
    ("train.en", "train.en", None, None),
    ("data.one", "data.two", None, None),
]


@pytest.mark.parametrize(("src_file", "tgt_file", "src", "tgt"), TWO_FILES)
def test_two_files_are_named_after_their_languages(
    src_file: str, tgt_file: str, src: str | None, tgt: str | None
) -> None:
    assert languages_of_files([src_file, tgt_file]) == (src, tgt)
    assert languages_of_files([tgt_file, src_file]) == (tgt, src)


@pytest.mark.parametrize(("name", "src", "tgt"), [
    ("en-de.tmx", "en", "de"),
    ("corpus.uk-pl.tsv", "uk", "pl"),
    ("opus_ja-en.tsv.gz", "ja", "en"),
    ("deu-eng.txt", "deu", "eng"),
    ("eng_Latn-khm_Khmr.tsv", "eng_Latn", "khm_Khmr"),
    ("en2fr.jsonl", "en", "fr"),
    ("fa_to_ur.jsonl", "fa", "ur"),
    ("si-en/train.tsv", "si", "en"),
    ("german-english.tsv", "de", "en"),
    ("en-us-de.tsv", "en-us", "de"),
    ("en-pt-br.tsv", None, None),  # br is a region of pt, or Breton beside the region PT of en
    ("train.tsv", None, None),
    ("en-en.tsv", None, None),
])  # fmt: skip
def test_one_file_is_named_after_both_languages(name: str, src: str | None, tgt: str | None) -> None:
    assert languages_of_files([name]) == (src, tgt)
