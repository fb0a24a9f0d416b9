"""Pieces that tell a model what is wanted: the target language, or that a source was made by a machine."""

from dataclasses import dataclass, field

from mtformer.config.data import DataConfig
from mtformer.errors import ConfigError
from mtformer.text.tokenizer import BOS, UNK, Tokenizer, TokenizerPair


def language_tag(language: str) -> str:
    """The piece that asks for a language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def all_tags(data: DataConfig) -> list[str]:
    """All that a config's data need; the tokenizer has each as one piece."""
    tags = [corpus.tag for corpus in data.corpora.values() if corpus.tag is not None]
    if data.language_tags != "none":
        tags += [language_tag(language) for language in data.target_languages]
    return list(dict.fromkeys(tags))


def tag_id(tag: str, tokenizer: Tokenizer) -> int:
    """The id of a tag; raises ConfigError when the tokenizer does not have it as a piece of its own."""
    piece = tokenizer.piece_id(tag)
    if piece == UNK:
        raise ConfigError(
            f"{tokenizer.name}: the tokenizer has no piece '{tag}'; train it with tokenizer.user_symbols: ['{tag}'], "
            "or let `mtformer train` make it"
        )
    return piece


@dataclass(frozen=True)
class Target:
    """How a model is asked for one language, in ids."""

    tags: list[int] = field(default_factory=list)
    """Before each source."""
    start: int = BOS
    """What the decoder starts with."""


def target(data: DataConfig, tokenizers: TokenizerPair, language: str | None = None) -> Target:
    """How the model of this config is asked for a language; None: `data.tgt_lang`.

    Raises:
        ConfigError: when it was not trained on that language.
    """
    known = data.target_languages
    language = language or data.tgt_lang
    if language not in known:
        raise ConfigError(f"this model does not translate to '{language}'; it was trained on {', '.join(known)}")
    if data.language_tags == "source":
        return Target(tags=[tag_id(language_tag(language), tokenizers.src)])
    if data.language_tags == "target":
        return Target(start=tag_id(language_tag(language), tokenizers.tgt))
    return Target()
