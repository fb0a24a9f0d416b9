"""Glossaries: source terms and the translations that are required for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from unicodedata import normalize

from mtformer.errors import DataError
from mtformer.text.case import upper_case
from mtformer.text.words import whole_words

SAME_I = str.maketrans("ı", "i", "\u0307")
"""For `str.translate` of casefolded text: i, ı, I and İ become equal, as in `re.IGNORECASE`."""


@dataclass(frozen=True)
class Glossary:
    """Pairs of a source term and its required translation, the longest source terms first."""

    terms: tuple[tuple[str, str], ...] = ()
    language: str = ""
    """Code of the source language; empty if it is unknown."""

    @classmethod
    def from_mapping(cls, translations: Mapping[str, str], language: str = "") -> "Glossary":
        """Return the glossary with these translations of terms; raise DataError if one of both is blank.

        Args:
            translations: required translation of each source term.
            language: code of the source language, which may be unknown (empty).
        """
        terms = []
        for src, tgt in translations.items():
            src_term = _normalized(src)
            tgt_term = tgt.strip()
            if not src_term or not tgt_term:
                raise DataError("a glossary term is blank, or its translation is; leave it out")
            terms.append((src_term, tgt_term))
        terms.sort(key=_rank_of_term)
        return cls(tuple(terms), language)

    def required_terms(self, text: str) -> list[str]:
        """Return the target terms for the source terms in a text.

        Terms match whole words (see `mtformer.text.words`); case matters only for terms with capitals. A term inside a
        longer one does not count.
        """
        remaining_text = _normalized(text)
        folded_text = _folded(remaining_text)
        required = []
        for src, tgt in self.terms:
            has_capitals = src != src.lower()
            forms = (src,) if has_capitals else _forms(src, self.language)
            num_matches = 0
            for form in forms:
                # A quick check, because most terms occur in few texts.
                if _folded(form) not in folded_text:
                    continue
                pattern = whole_words(form, ignore_case=not has_capitals)
                # Removed, so that shorter terms are not found in it.
                remaining_text, num_found = pattern.subn("\n", remaining_text)
                num_matches += num_found
            if num_matches > 0:
                required.append(tgt)
        return required


@lru_cache(maxsize=10_000)
def _forms(term: str, language: str) -> tuple[str, ...]:
    """Return a term, and its capitals if they have other letters, as in ομάδα and ΟΜΑΔΑ, or Straße and STRASSE."""
    capitals = upper_case(term, language)
    return (term,) if capitals.lower() == term else (term, capitals)


def _rank_of_term(term: tuple[str, str]) -> tuple[int, bool]:
    """Return the rank of a term: the longest first, and among those of one length, those with capitals.

    Terms with capitals match fewer texts.
    """
    src, _ = term
    return -len(src), src.islower()


def _normalized(text: str) -> str:
    """Return a text with composed characters and single spaces."""
    return normalize("NFC", " ".join(text.split()))


def _folded(text: str) -> str:
    return text.casefold().translate(SAME_I)
