"""Jobs are translated together, and each gets its own translations."""

import threading
from collections.abc import Sequence
from concurrent.futures import wait

import pytest
from served import alone, recorded, some_lines

from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator, override
from mtformer.serving.batcher import MAX_CHARACTERS, Batcher, ClosedError, Job

SECONDS = 20


def run(batcher: Batcher, *jobs: Job) -> list[list[Translation]]:
    """Start the thread after all jobs are queued, and return their answers."""
    for job in jobs:
        batcher.submit(job)
    batcher.start()
    wait([job.answer for job in jobs], SECONDS)
    batcher.close()
    return [job.answer.result(0) for job in jobs]


def test_waiting_jobs_share_a_batch_and_each_gets_its_own_translations(translator: Translator) -> None:
    mine, calls = recorded(translator)
    lines = some_lines(30)
    jobs = [Job(lines[start : start + 3], "de") for start in range(0, 30, 3)]
    answers = run(Batcher({"de": mine}, 10), *jobs)
    assert calls == [lines]
    assert [[one.text for one in answer] for answer in answers] == [
        [alone(translator, line) for line in job.lines] for job in jobs
    ]


def test_a_batch_has_a_maximum_size(translator: Translator) -> None:
    mine, calls = recorded(translator)
    jobs = [Job(["the dog sees the cat"] * 200, "de") for _ in range(5)]
    num_characters = sum(len(line) + 1 for line in jobs[0].lines)
    assert 2 * num_characters < MAX_CHARACTERS < 3 * num_characters
    run(Batcher({"de": mine}, 10), *jobs)
    assert [len(lines) for lines in calls] == [600, 400]


def test_only_jobs_with_equal_settings_share_a_batch(both: Translator) -> None:
    to_german, german_calls = recorded(both.into("de"))
    to_english, english_calls = recorded(both.into("en"))
    jobs = [Job(["a dog"], "de"), Job(["ein hund"], "en"), Job(["a cat"], "de", attention=True), Job(["a man"], "de")]
    answers = run(Batcher({"de": to_german, "en": to_english}, 10), *jobs)
    assert (german_calls, english_calls) == ([["a dog", "a man"], ["a cat"]], [["ein hund"]])
    assert answers[1][0].text == alone(both.into("en"), "ein hund") != alone(both.into("de"), "ein hund")
    assert [answer[0].attention is not None for answer in answers] == [False, False, True, False]


def test_a_failing_job_does_not_affect_the_others(translator: Translator) -> None:
    def fail(lines: Sequence[str]) -> None:
        if "bad" in lines:
            raise RuntimeError("bad line")

    mine, calls = recorded(translator, fail)
    jobs = [Job([line], "de") for line in ("a dog", "bad", "a cat")]
    with pytest.raises(RuntimeError, match="bad line"):
        run(Batcher({"de": mine}, 10), *jobs)
    assert jobs[0].answer.result()[0].text == alone(translator, "a dog")
    assert jobs[2].answer.result()[0].text == alone(translator, "a cat")
    assert calls == [["a dog", "bad", "a cat"], ["a dog"], ["bad"], ["a cat"]]


class Held:
    """A translator that waits in the middle of its first call."""

    def __init__(self, translator: Translator) -> None:
        self.begun, self.may_continue = threading.Event(), threading.Event()
        self.translator, self.calls = recorded(translator, self._hold)

    def _hold(self, lines: Sequence[str]) -> None:
        self.begun.set()
        assert self.may_continue.wait(SECONDS)


def test_a_batch_without_clients_is_abandoned(translator: Translator) -> None:
    held = Held(translator)
    batcher, job, after = Batcher({"de": held.translator}, 10), Job(["a dog"], "de"), Job(["a cat"], "de")
    batcher.submit(job)
    batcher.start()
    assert held.begun.wait(SECONDS)
    job.is_abandoned = True
    batcher.submit(after)
    held.may_continue.set()
    assert after.answer.result(SECONDS)[0].text == alone(translator, "a cat")
    with pytest.raises(ClosedError):
        job.answer.result(SECONDS)
    batcher.close()


def test_all_waiting_jobs_get_an_error_on_shutdown(translator: Translator) -> None:
    held = Held(translator)
    batcher, jobs = Batcher({"de": held.translator}, 10), [Job(["a dog"], "de"), Job(["a cat"], "de")]
    batcher.submit(jobs[0])
    batcher.start()
    assert held.begun.wait(SECONDS)
    batcher.submit(jobs[1])
    threading.Timer(0.2, held.may_continue.set).start()
    batcher.close()
    for job in jobs:
        with pytest.raises(ClosedError):
            job.answer.result(0)
    with pytest.raises(ClosedError):
        batcher.submit(Job(["a man"], "de"))
    assert held.calls == [["a dog"]]


def test_samples_do_not_depend_on_other_jobs(translator: Translator) -> None:
    drawn, calls = recorded(translator)
    drawn.decoding = override(translator.decoding, sampling=True)
    plain_translate = drawn.translate
    drawn.translate = lambda lines, **settings: plain_translate(lines, sampling=True, **settings)
    line = "the dog sees the red cat"
    answers = run(Batcher({"de": drawn}, 10), *(Job([line], "de") for _ in range(4)))
    assert calls == [[line]] * 4
    assert len({answer[0].text for answer in answers}) == 1
