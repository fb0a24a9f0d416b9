"""Keys declare which backends and exports support them; what they do not declare is refused."""

from typing import Annotated, Any

import pytest

from mtformer.config.schema import Config, DecodingConfig, ModelConfig, TokenizerConfig
from mtformer.config.section import ARGOS, CTRANSLATE2, HUGGINGFACE, Key, Section, Support, key_of
from mtformer.config.support import require_backend, require_export
from mtformer.errors import ConfigError

EXPORTS = [CTRANSLATE2, HUGGINGFACE, ARGOS]
CONFIG = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de"}})


class NewTokenizer(TokenizerConfig):
    """A tokenizer with a key whose support is not declared."""

    new_key: int = 3


class NewModel(ModelConfig):
    """A model with a key whose support is not declared."""

    new_key: int = 3


class NewSearch(DecodingConfig):
    """A search with a key whose support is not declared."""

    new_key: int = 3


class DeclaredSearch(DecodingConfig):
    """A search with a key whose support is declared for some values."""

    new_key: Annotated[int, Key(backends=(CTRANSLATE2.only(3),), exports=(HUGGINGFACE.only(3, 4), ARGOS.ignored))] = 3


def with_section(name: str, section: Section) -> Config:
    return CONFIG.model_copy(update={name: section})


def require(library: Support, config: Config) -> None:
    """Check the config like `export` to a library, and for CTranslate2 also like a search with it."""
    require_export(config, library, "use another --format")
    if library == CTRANSLATE2:
        require_backend(config.decoding, library)


@pytest.mark.parametrize("library", EXPORTS, ids=lambda library: library.library)
@pytest.mark.parametrize("value", [3, 4])
@pytest.mark.parametrize(("name", "kind"), [("tokenizer", NewTokenizer), ("model", NewModel), ("decoding", NewSearch)])
def test_a_new_key_is_refused_everywhere(name: str, kind: type[Section], value: int, library: Support) -> None:
    config = with_section(name, kind.model_validate({"new_key": value}))
    with pytest.raises(ConfigError) as caught:
        require(library, config)
    backend = name == "decoding" and library == CTRANSLATE2
    alternative = "use --backend mtformer" if backend else "use another --format"
    message = f"{name}.new_key {value}: not supported by {library.library}; {alternative}"
    assert str(caught.value) == message


def test_declared_values_are_supported_and_others_refused() -> None:
    default = with_section("decoding", DeclaredSearch())
    other = with_section("decoding", DeclaredSearch(new_key=4))
    last = with_section("decoding", DeclaredSearch(new_key=5))
    for library in EXPORTS:
        require(library, default)
    require_export(other, HUGGINGFACE, "use another --format")
    require_export(last, ARGOS, "use another --format")
    with pytest.raises(
        ConfigError, match=r"^decoding\.new_key 4: not supported by CTranslate2; set 3, or use --backend "
    ):
        require_backend(other.decoding, CTRANSLATE2)
    with pytest.raises(
        ConfigError, match=r"^decoding\.new_key 5: not supported by Hugging Face Transformers; set 3 or 4,"
    ):
        require_export(last, HUGGINGFACE, "use another --format")


def refused_keys(library: Support, *changes: dict[str, Any]) -> list[str | None]:
    """Return for each change of the default config the key that is refused, or None."""
    keys = list[str | None]()
    for values in changes:
        try:
            require(library, CONFIG.with_values(values))
            keys.append(None)
        except ConfigError as error:
            keys.append(str(error).partition(" ")[0])
    return keys


@pytest.mark.parametrize("library", EXPORTS, ids=lambda library: library.library)
def test_defaults_are_supported_by_all(library: Support) -> None:
    changed = {"data.language_tags": "target"}
    assert refused_keys(library, {}, changed) == [None, "data.language_tags"]


@pytest.mark.parametrize("section", [TokenizerConfig, ModelConfig, DecodingConfig])
def test_every_key_declares_each_export(section: type[Section]) -> None:
    expected = {HUGGINGFACE.library, ARGOS.library}
    expected |= set() if section is DecodingConfig else {CTRANSLATE2.library}
    for name in section.model_fields:
        key = key_of(section, name)
        assert {support.library for support in key.exports} == expected, name
        assert {support.library for support in key.backends} == (
            {"CTranslate2"} if section is DecodingConfig else set()
        )


@pytest.mark.parametrize(
    ("values", "library", "message"),
    [
        ({"decoding.max_length_ratio": 3.0}, HUGGINGFACE, "set 2.0 or a max_length that it cannot lower, or use "),
        ({"decoding.split": "always"}, HUGGINGFACE, "set 'auto' or 'never', or use another --format"),
        ({"decoding.n_best": 2}, HUGGINGFACE, "set 1, or use another --format"),
        (
            {"decoding.repetition_penalty": 1.2, "decoding.beam_size": 1},
            HUGGINGFACE,
            "set 1.0 or beam_size above 1, or",
        ),
        ({"model.tie_embeddings": "output"}, HUGGINGFACE, "train with 'all' or norm_position: post, or use another"),
        ({"model.num_kv_heads": 2}, HUGGINGFACE, "train with null or num_heads as num_kv_heads, or use another"),
        ({"data.language_tags": "target"}, CTRANSLATE2, "train with 'none' or 'source', or use another --format"),
        ({"data.language_tags": "source"}, ARGOS, "train with 'none', or use another --format"),
        (
            {"tokenizer.joint": False, "model.tie_embeddings": "output"},
            ARGOS,
            "train with true, or use another --format",
        ),
        (
            {"decoding.early_stopping": "certain"},
            CTRANSLATE2,
            "set 'auto' or 'ended' or beam_size: 1, or use --backend",
        ),
        ({"decoding.mbr_samples": 4}, CTRANSLATE2, "set 0, or use --backend mtformer"),
    ],
)
def test_unsupported_values_are_refused_with_a_remedy(values: dict[str, Any], library: Support, message: str) -> None:
    key = next(iter(values))
    with pytest.raises(ConfigError) as caught:
        require(library, CONFIG.with_values(values))
    assert str(caught.value).startswith(f"{key} ")
    assert f": not supported by {library.library}; {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "supported_with", "refused_with", "library"),
    [
        (
            {"decoding.max_length_ratio": 30.0},
            {"decoding.max_length": 40},
            {"decoding.max_length": 100},
            HUGGINGFACE,
        ),
        ({"decoding.repetition_penalty": 1.2}, {"decoding.beam_size": 2}, {"decoding.beam_size": 1}, HUGGINGFACE),
        (
            {"model.tie_embeddings": "none"},
            {"model.norm_position": "post"},
            {"model.norm_position": "pre"},
            HUGGINGFACE,
        ),
        ({"model.num_kv_heads": 4}, {"model.num_heads": 4}, {"model.num_heads": 8}, HUGGINGFACE),
        ({"decoding.early_stopping": "certain"}, {"decoding.beam_size": 1}, {"decoding.beam_size": 2}, CTRANSLATE2),
    ],
)
def test_values_that_are_supported_with_other_settings(
    values: dict[str, Any], supported_with: dict[str, Any], refused_with: dict[str, Any], library: Support
) -> None:
    refused = refused_keys(library, values | supported_with, values | refused_with)
    assert refused == [None, *values]


def test_settings_that_argos_ignores_are_supported_by_it_alone() -> None:
    values = {"decoding.sampling": True, "decoding.temperature": 0.5}
    refused = [refused_keys(library, values) for library in (ARGOS, HUGGINGFACE, CTRANSLATE2)]
    assert refused == [[None], ["decoding.sampling"], ["decoding.sampling"]]
