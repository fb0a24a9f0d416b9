"""Search without those required phrases that do not fit.

The search must end with all required phrases of a segment, even if the model repeats itself or writes a further
sentence for that. If a translation looks like this, the segment is searched again with fewer phrases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from mtformer.decoding.lines.placement import has_unlikely_token, is_appended
from mtformer.decoding.lines.sentences import split_sentences, with_capitals
from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.decoding.search.constraints import missing
from mtformer.decoding.search.segments import Segment
from mtformer.text.tokenizer import Tokenizer

WORD = "Word"
"""Any word with a capital letter."""
Search = Callable[[Sequence[Segment]], list[list[Translation]]]
"""Function that returns the n best translations of each segment."""


@dataclass(frozen=True)
class Trial:
    """A segment with some of its required phrases, and the n best translations that contain them."""

    segment: Segment
    n_best: list[Translation]

    @property
    def best(self) -> Translation:
        """The best translation."""
        return self.n_best[0]


@dataclass(frozen=True)
class UnfitPhrases:
    """Search for translations without phrases that do not fit.

    Args:
        search: function that searches for translations.
        tokenizer: target tokenizer.
    """

    search: Search
    tokenizer: Tokenizer

    def leave_out(self, segments: Sequence[Segment], n_bests: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Return the translations of segments, searched again if they fail because of required phrases; see `_fails`.

        The translation with the most phrases that does not fail is used, and among several the one with the best score.

        Args:
            segments: segments with or without required phrases.
            n_bests: n best translations of each segment, with all phrases.
        """
        result = list(n_bests)
        constrained = {}
        for number, segment in enumerate(segments):
            if segment.required:
                constrained[number] = Trial(segment, result[number])

        while constrained:
            suspicious = {number: trial for number, trial in constrained.items() if self.may_fail(trial)}
            # All other translations are final.
            trials_with_fewer = self._search_with_fewer_phrases(suspicious)
            constrained = {}
            for number, trial in suspicious.items():
                better_trial = self._better_trial(trial, trials_with_fewer[number])
                if better_trial is None:
                    continue
                result[number] = better_trial.n_best
                # With one phrase, it has just been compared with the translation without any.
                if len(better_trial.segment.required) > 1:
                    constrained[number] = better_trial
        return result

    def _search_with_fewer_phrases(self, trials: Mapping[int, Trial]) -> dict[int, list[Trial]]:
        """Search each segment without one of its required phrases, for each of them, and without all of them."""
        numbers = []
        segments = []
        for number, trial in trials.items():
            phrases = trial.segment.required
            without_one = combinations(phrases, len(phrases) - 1)
            for subset in dict.fromkeys([(), *without_one]):
                numbers.append(number)
                segments.append(replace(trial.segment, required=subset))

        trials_with_fewer: dict[int, list[Trial]] = {number: [] for number in trials}
        n_bests = self.search(segments)
        for number, segment, n_best in zip(numbers, segments, n_bests, strict=True):
            trials_with_fewer[number].append(Trial(segment, n_best))
        return trials_with_fewer

    def _better_trial(self, trial: Trial, trials_with_fewer: Sequence[Trial]) -> Trial | None:
        """Return the best trial that does not fail; None if the given one does not, or all of them do."""
        if not self._fails(trial, trials_with_fewer):
            return None

        without_any = [candidate for candidate in trials_with_fewer if not candidate.segment.required]
        usable = [candidate for candidate in trials_with_fewer if not self._fails(candidate, without_any)]
        return max(usable, key=_num_phrases_and_score, default=None)

    def may_fail(self, trial: Trial) -> bool:
        """Return True if a translation may fail because of required phrases; to be sure needs more searches."""
        return has_unlikely_token(trial.best) or self._fails(trial)

    def _fails(self, trial: Trial, trials_with_fewer: Sequence[Trial] = ()) -> bool:
        """Return True if a translation lacks required phrases, or has what they may cause.

        That is a repetition or, for a phrase that does not fit, a further sentence, or the phrase before or after the
        sentence. `trials_with_fewer` are those of the same segment with fewer phrases, as far as they are known.
        """
        translation = trial.best
        required = trial.segment.required
        if Flag.REPETITION in translation.flags or missing(translation.tokens, required):
            return True

        phrases = self.tokenizer.decode(required)
        if _has_further_sentence(trial, phrases, trials_with_fewer):
            return True

        for phrase, ids in zip(phrases, required, strict=True):
            for with_fewer in trials_with_fewer:
                is_left_out = ids not in with_fewer.segment.required
                if is_left_out and is_appended(phrase, ids, translation, with_fewer.best):
                    return True
        return False


def _has_further_sentence(trial: Trial, phrases: Sequence[str], trials_with_fewer: Sequence[Trial]) -> bool:
    """Return True if a translation has more sentences than its source and the translation without phrases.

    Args:
        trial: a segment and its translation with required phrases.
        phrases: text of these phrases.
        trials_with_fewer: trials with fewer of the phrases.
    """
    text = trial.best.text
    for phrase in phrases:
        # A phrase is one word here: it may contain periods, and begin a further sentence in lower case.
        if phrase:
            text = text.replace(phrase, WORD)

    without_phrases = [candidate for candidate in trials_with_fewer if not candidate.segment.required]
    compared_texts = [trial.segment.text]
    compared_texts += [candidate.best.text for candidate in without_phrases]
    max_sentences = max(map(_num_sentences, compared_texts))
    return _num_sentences(text) > max_sentences


def _num_phrases_and_score(trial: Trial) -> tuple[int, float]:
    return len(trial.segment.required), trial.best.score


def _num_sentences(text: str) -> int:
    """Return the number of sentences; a text in lower case after a final punctuation mark counts too."""
    return len(split_sentences(with_capitals(text)))
