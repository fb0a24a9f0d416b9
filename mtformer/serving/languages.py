"""The languages that a model reads and writes, their names, and which of them a text is in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mtformer.config.data import DataConfig
from mtformer.data.function_words import words_of

NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "gl": "Galician", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian",
    "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian",
    "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi", "ms": "Malay", "my": "Burmese",
    "nb": "Norwegian Bokmål", "ne": "Nepali", "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian",
    "pa": "Punjabi", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish",
    "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""In English, by ISO 639-1 code; a language without one here is called by its code."""
LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Languages:
    """The directions of a model, (source, target); the first is that of its config."""

    directions: Sequence[tuple[str, str]]

    @classmethod
    def from_config(cls, data: DataConfig) -> "Languages":
        """Return the languages of a config.

        A bundle names no data: a language that only `tgt_langs` names comes from the source language, and the source
        language from all others.
        """
        found = list(data.directions)
        known = {target for _, target in found}
        for target in data.tgt_langs:
            others = set(data.target_languages) - {target} if target == data.src_lang else {data.src_lang}
            found += [(source, target) for source in sorted(others) if target not in known]
        return cls(found)

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(source for source, _ in self.directions))

    def targets(self, source: str) -> list[str]:
        """Return the languages that a language is translated into."""
        return [target for one, target in self.directions if one == source]

    def sources_of(self, target: str) -> list[str]:
        """Return the languages that are translated into a language."""
        return [source for source, one in self.directions if one == target]

    def describe(self) -> list[dict[str, object]]:
        """Return every language once, with the targets it is translated into, in LibreTranslate's form."""
        codes = dict.fromkeys([*self.sources, *(target for _, target in self.directions)])
        return [{"code": code, "name": language_name(code), "targets": self.targets(code)} for code in codes]


def language_name(code: str) -> str:
    """Return the English name of a language, with the part of the code behind `-` or `_` in parentheses."""
    base, *rest = re.split("[-_]", code, maxsplit=1)
    known = NAMES.get(base.lower())
    return code if known is None else f"{known} ({rest[0]})" if rest else known


def detect(text: str, candidates: Sequence[str]) -> dict[str, object]:
    """Return the language of a text, out of those that a model reads, and the confidence in percent.

    A single candidate has 100, whatever the text. Of several the one with the most function words in the text, and its
    share of theirs; with 0 it is the first because nothing is known.
    """
    if len(candidates) == 1:
        return {"confidence": 100.0, "language": candidates[0]}
    words = LETTERS.findall(text.lower())
    counts = [sum(word in words_of(code) for word in words) for code in candidates]
    best = max(range(len(counts)), key=counts.__getitem__)
    return {"confidence": round(100 * counts[best] / max(1, sum(counts)), 1), "language": candidates[best]}
