"""The options of search are the keys of the config's `decoding` section."""

import re
from typing import get_args, get_type_hints

import pytest
from program import invoke

from mtformer.cli.decoding_options import OPTIONS
from mtformer.config.schema import DecodingConfig


def test_the_copy_of_the_schema_is_true() -> None:
    fields = {key: field for key, field in DecodingConfig.model_fields.items() if key != "validation_beam_size"}
    assert list(OPTIONS) == list(fields)
    hints = get_type_hints(DecodingConfig)
    for key, (kind, help_text) in OPTIONS.items():
        assert help_text == fields[key].description
        assert kind == hints[key] or kind in get_args(hints[key]), key


@pytest.mark.parametrize("command", ["translate", "eval", "serve"])
def test_each_is_in_the_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = invoke(command, "--help").stdout
    for key in OPTIONS:
        assert re.search(rf"--{key.replace('_', '-')}[ ,]", shown), key
    assert "--no-sampling" in shown
    assert "validation" not in shown
