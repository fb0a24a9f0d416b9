"""Decoding options, which are the keys of the config's `decoding` section."""

import re

import pytest
from program import invoke

from mtformer.config.schema import DecodingConfig


@pytest.mark.parametrize("command", ["translate", "eval", "serve"])
def test_each_option_is_in_the_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = invoke(command, "--help").stdout
    for key in DecodingConfig.model_fields.keys() - {"validation_beam_size"}:
        assert re.search(rf"--{key.replace('_', '-')}[ ,]", shown), key
    assert "--sample, --sampling" in shown
    assert "--no-sampling" not in shown  # hidden; test_help.py checks that it works
    assert "validation" not in shown
