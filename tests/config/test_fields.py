"""Key metadata by dotted path, including keys in lists, mappings and sources."""

from dataclasses import replace

import pytest

from mtformer.config.fields import key_metadata
from mtformer.config.section import Key


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("training.seed", Key("warn")),
        ("training.trackers", Key("same", has_effect=False, side_output=True)),
        ("training.init_from", Key("refuse", path="file")),
        ("model.d_model", Key("refuse")),
        ("model.dropout", Key("warn")),
        ("tokenizer.src_model", Key("refuse", path="file")),
        ("data.tgt_lang", Key("refuse")),
        ("data.train.0.src", Key("same", path="file")),
        ("data.train.0.src_column", Key("same")),
        ("data.test.newstest.dataset", Key("same", path="folder or name")),
        ("data.dev.0.src", Key("same", path="file")),
        ("data.dev.news.src", Key("same", path="file")),
        ("data.dev.news.src_column", Key("same")),
        ("data.corpora.bt.sources.1.tsv", Key("same", path="file")),
        ("data.corpora.bt.weight", Key("warn")),
        ("data.filters.max_tokens", Key("same")),
        ("data.noise.typos", Key("warn")),
        ("decoding.beam_tokens", Key("same", panel="Device and weights", metavar="N", has_effect=False)),
        ("decoding.n_best", Key("same", panel="Search", metavar="N", in_validation=False)),
        ("evaluation.lowercase", Key("same")),
        ("data.unknown", Key("warn")),
        ("unknown.key.0", Key("warn")),
    ],
)
def test_metadata_of_a_key(path: str, expected: Key) -> None:
    key = replace(key_metadata(path), backends=(), exports=())  # see test_support.py
    assert key == expected
