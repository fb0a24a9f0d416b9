"""Languages of a model, and detection of a text's language."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtformer.config.data import DataConfig
from mtformer.config.languages import language_name
from mtformer.data.filters.language import LETTERS, probabilities, words_of


@dataclass(frozen=True)
class Languages:
    """Translation directions of a model, as (source, target); the first one is the main direction of the config."""

    directions: Sequence[tuple[str, str]]

    @classmethod
    def from_config(cls, data: DataConfig) -> "Languages":
        """Return the languages of a config.

        The config of a bundle lists no corpora. Targets listed only in `tgt_langs` are translated from the source
        language; if the source language is itself such a target, it is translated from all others.
        """
        found = list(data.directions)
        known = {target for _, target in found}
        for target in data.tgt_langs:
            others = set(data.target_languages) - {target} if target == data.src_lang else {data.src_lang}
            found += [(source, target) for source in sorted(others) if target not in known]
        return cls(found)

    @property
    def sources(self) -> list[str]:
        """Source languages."""
        return list(dict.fromkeys(source for source, _ in self.directions))

    def sources_of(self, target: str) -> list[str]:
        """Return the source languages that are available for a target language."""
        return [source for source, one in self.directions if one == target]

    def describe(self) -> list[dict[str, object]]:
        """Return each language once, with the languages it can be translated into, in LibreTranslate's format."""
        codes = dict.fromkeys([*self.sources, *(target for _, target in self.directions)])
        targets = {code: [target for source, target in self.directions if source == code] for code in codes}
        return [{"code": code, "name": language_name(code), "targets": targets[code]} for code in codes]


def detect(text: str, candidates: Sequence[str]) -> dict[str, object]:
    """Return which of the candidate languages a text is in, and the confidence in percent.

    The confidence is py3langid's probability, assuming that the text is in one of the candidates; it is 100 if there is
    only one. Without py3langid, or if it does not support a candidate, the language is the one with the most function
    words in the text, and the confidence is its share of them. If there are none, the first candidate is returned with
    confidence 0.
    """
    if len(candidates) == 1:
        return {"confidence": 100.0, "language": candidates[0]}
    shares = probabilities(text, candidates)
    if shares is None:
        words = LETTERS.findall(text.lower())
        counts = [sum(word in words_of(code) for word in words) for code in candidates]
        shares = [count / max(1, sum(counts)) for count in counts]
    best = max(range(len(shares)), key=shares.__getitem__)
    return {"confidence": round(100 * shares[best], 1), "language": candidates[best]}
