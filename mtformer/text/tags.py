"""Tags: pieces that mark the target language, or a corpus such as back-translated text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mtformer.config.data import DataConfig
from mtformer.errors import ConfigError
from mtformer.text.tokenizer import BOS, UNK, Tokenizer, TokenizerPair


def language_tag(language: str) -> str:
    """Return the tag of a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def tags_by_side(data: DataConfig) -> tuple[list[str], list[str]]:
    """Return all tags on the source side and on the target side; the tokenizers must have a piece for each."""
    src_tags = [corpus.tag for corpus in data.corpora.values() if corpus.tag is not None]
    tgt_tags = []
    language_tags = [language_tag(language) for language in data.target_languages]
    if data.language_tags == "source":
        src_tags += language_tags
    if data.language_tags == "target":
        tgt_tags = language_tags
    return list(dict.fromkeys(src_tags)), tgt_tags


def with_tags(tokenizers: TokenizerPair, data: DataConfig) -> TokenizerPair:
    """Return the tokenizers of a model with the tags of its `data` section as control symbols."""
    src_tags, tgt_tags = tags_by_side(data)
    # Also on the other side: there, a text such as `<bt>` is no tag.
    return tokenizers.with_tags([*src_tags, *tgt_tags])


def tag_id(tag: str, tokenizer: Tokenizer) -> int:
    """Return the id of a tag; raise ConfigError if it is not a piece of the tokenizer."""
    require_tags([tag], tokenizer)
    return tokenizer.piece_id(tag)


def require_tags(tags: Sequence[str], tokenizer: Tokenizer) -> None:
    """Raise ConfigError if a tag is not a piece of the tokenizer."""
    missing = [tag for tag in tags if tokenizer.piece_id(tag) == UNK]
    if missing:
        problem = f"the tokenizer has no piece {', '.join(map(repr, missing))}"
        remedy = f"train it with tokenizer.user_symbols: {missing}, or let `mtformer train` train one"
        raise ConfigError(f"{tokenizer.name}: {problem}; {remedy}")


@dataclass(frozen=True)
class Target:
    """Ids that select a target language."""

    tags: list[int] = field(default_factory=list)
    """Ids to insert before each source sentence."""
    start: int = BOS
    """First input id of the decoder."""
    excluded: list[int] = field(default_factory=list)
    """Ids that no translation contains: the tags of the target vocabulary."""


def target(data: DataConfig, tokenizers: TokenizerPair, language: str | None = None) -> Target:
    """Return the ids that select a target language; raise ConfigError if the model was not trained on it.

    Args:
        data: the `data` section of the model.
        tokenizers: tokenizers of the model, with its tags (see `with_tags`).
        language: code of the target language; None: `data.tgt_lang`.
    """
    known_languages = data.target_languages
    language = language or data.tgt_lang
    if language not in known_languages:
        problem = f"this model does not translate to '{language}'"
        languages = ", ".join(known_languages)
        raise ConfigError(f"{problem}; it was trained on {languages}, so choose one of these")

    tag = language_tag(language)
    excluded = tokenizers.tgt.tag_ids
    if data.language_tags == "source":
        return Target(tags=[tag_id(tag, tokenizers.src)], excluded=excluded)
    if data.language_tags == "target":
        return Target(start=tag_id(tag, tokenizers.tgt), excluded=excluded)
    return Target(excluded=excluded)
