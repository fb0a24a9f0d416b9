"""Metrics that other programs compute, such as COMET: a command line with places for files of lines.

    comet-score -s {src} -t {hyp} -r {ref}

The program is started directly, without a shell. It writes one number, or one number per line:

- The last line has the score: it ends with a number, and has no other. `score: 0.85` is such a line.
- If N lines that differ only in their numbers come before it, or are all there is, where N is the number of
  translations, their last numbers are the scores of the lines. Their mean is the score, also if it is not written.

Commands come from the command line and the user's settings only, see `config.user_settings`. Score cards have the name
of the program and the checksum of the command, and nothing that could be executed.
"""

import contextlib
import hashlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mtformer.config.user_settings import read_user_settings, settings_file
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.scores import METRICS, Score

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
"""Name of a metric, which is part of a file name."""
PLACE = re.compile(r"\{([a-z]+)\}")
"""Place for a file in a command."""
PLACES = ("src", "hyp", "ref")
"""Names of the places: sources, translations, and first references."""
LOWER = "-"
"""Sign after the name of a metric for which lower is better."""
MAX_SECONDS = 4 * 3600
"""Time limit of a command; large metrics take hours on a CPU."""
MAX_OUTPUT = 300
"""Number of characters of the output of a program that an error message shows."""
MEAN_TOLERANCE = 1e-3
"""Relative difference between the printed score and the mean of the scores of lines, because both are rounded."""


@dataclass(frozen=True)
class ExternalMetric:
    """A metric that another program computes."""

    name: str
    command: str
    """Command line with places for files."""
    lower_is_better: bool = False

    @property
    def arguments(self) -> list[str]:
        """The program and its arguments."""
        return shlex.split(self.command)

    @property
    def signature(self) -> str:
        """Name of the program and start of the checksum of the command, which may contain paths and keys."""
        sha256 = hashlib.sha256(self.command.encode()).hexdigest()
        return f"program:{os.path.basename(self.arguments[0])}|command:{sha256[:12]}"


@dataclass(frozen=True)
class ExternalScore:
    """Result of an external metric."""

    score: Score
    of_lines: list[float] | None
    """Score of each line; None if the program writes only the score of the whole text."""


def find_metrics(texts: Sequence[str]) -> list[ExternalMetric]:
    """Return the metrics that options name: `NAME=COMMAND`, or `NAME` for a command in the user's settings.

    Raise ConfigError for an invalid name or command, an unknown name, or a program that is not installed.
    """
    settings: Mapping[str, str] = {}
    if any("=" not in text for text in texts):
        settings = read_user_settings().metrics

    metrics: dict[str, ExternalMetric] = {}
    for text in texts:
        name, equals, command = text.partition("=")
        if not equals:
            name, command = _from_settings(name, settings)
        metric = _metric(name.strip(), command)
        if metric.name in metrics:
            raise ConfigError(f"metric {metric.name}: given twice; leave one out")
        metrics[metric.name] = metric
    return list(metrics.values())


def _from_settings(name: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """Return the name, with its sign, and the command of a metric in the user's settings."""
    for known_name, command in settings.items():
        if known_name.removesuffix(LOWER) == name.removesuffix(LOWER):
            return known_name, command
    known = f", which has {', '.join(settings)}" if settings else ""
    raise ConfigError(
        f"metric {name}: has no command; give {name}='COMMAND', or add it to `metrics` in {settings_file()}{known}"
    )


def _metric(name: str, command: str) -> ExternalMetric:
    """Return the metric after checking its name, its command and its program."""
    plain_name = name.removesuffix(LOWER)
    where = f"metric {plain_name}"
    if NAME.fullmatch(plain_name) is None:
        raise ConfigError(f"{where or 'metric'}: a name has letters, digits, '_', '.' and '-'; choose another name")
    if plain_name.lower() in METRICS:
        raise ConfigError(f"{where}: is computed anyway; choose another name")

    metric = ExternalMetric(plain_name, command.strip(), lower_is_better=name.endswith(LOWER))
    try:
        arguments = metric.arguments
    except ValueError as error:
        raise ConfigError(f"{where}: cannot be split into arguments ({error}); check the quotes") from error
    used = set(PLACE.findall(command))
    unknown = used - set(PLACES)
    if unknown or "hyp" not in used:
        problem = f"unknown place {{{min(unknown)}}}" if unknown else "has no place {hyp} for the translations"
        raise ConfigError(f"{where}: {problem}; the places are {{src}}, {{hyp}} and {{ref}}")
    if shutil.which(arguments[0]) is None:
        raise ConfigError(f"{where}: no program {arguments[0]}; install it, or give its path")
    return metric


def run_metric(metric: ExternalMetric, texts: Mapping[str, Sequence[str]]) -> ExternalScore:
    """Return the score of translations.

    Args:
        metric: The metric.
        texts: Lines of `src`, `hyp` and, unless the command has no place for them, `ref`.

    Raises:
        DataError: If the program fails, takes longer than `MAX_SECONDS`, or writes something else than numbers.
    """
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, str] = {}
        for place, lines in texts.items():
            path = Path(folder, f"{place}.txt")
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace", newline="\n")
            files[place] = str(path)
        arguments = [PLACE.sub(lambda match: files[match[1]], argument) for argument in metric.arguments]
        output = _run(metric, arguments)

    value, of_lines = _parse(metric, output, len(texts["hyp"]))
    return ExternalScore(Score(metric.name, metric.name, value, metric.signature), of_lines)


def score_lines(metric: ExternalMetric, texts: Mapping[str, Sequence[str]]) -> list[float]:
    """Return the score of each translation; raise DataError as `run_metric`, or if there is only one for all."""
    result = run_metric(metric, texts)
    if result.of_lines is None and len(texts["hyp"]) == 1:
        return [result.score.value]
    if result.of_lines is None:
        raise DataError(
            f"metric {metric.name}: wrote one number, but a number for each line is needed; see its options"
        )
    return result.of_lines


def _run(metric: ExternalMetric, arguments: Sequence[str]) -> str:
    """Run a program and return what it writes to stdout; its child processes end with it."""
    where = f"metric {metric.name}"
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise DataError(f"{where}: {arguments[0]} cannot be started ({error.strerror}); check the command") from error

    try:
        output, errors = process.communicate(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{where}: has not ended after {MAX_SECONDS:,} seconds; use fewer lines, or a GPU") from error
    finally:
        with contextlib.suppress(ProcessLookupError):  # usually all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    if process.returncode:
        all_lines = [*output.splitlines(), *errors.splitlines()]
        last_line = next((line for line in reversed(all_lines) if line.strip()), "no message")
        raise DataError(
            f"{where}: {arguments[0]} failed with exit code {process.returncode}: "
            f"{last_line.strip():.{MAX_OUTPUT}}; run the command yourself to see why"
        )
    return output


# ---- output of programs ---------------------------------------------------------------------------------------------


def _parse(metric: ExternalMetric, output: str, num_lines: int) -> tuple[float, list[float] | None]:
    """Return the score in the output of a program, and those of the lines if it has them."""
    rows = [line.split() for line in output.splitlines() if line.strip()]
    if num_lines > 1 and len(rows) == num_lines:
        of_lines = _line_scores(rows)
        if of_lines is not None:
            return fmean(of_lines), of_lines

    last_row = rows[-1] if rows else []
    numbers = _numbers(last_row)
    if len(numbers) != 1 or _number(last_row[-1]) is None:
        shown = " ".join(last_row) or "nothing"
        raise DataError(
            f"metric {metric.name}: wrote {len(rows)} lines, the last one '{shown:.{MAX_OUTPUT}}'; it must write one "
            f"number, or one for each of the {num_lines} lines"
        )
    value = numbers[0]

    if num_lines > 1 and len(rows) > num_lines:
        of_lines = _line_scores(rows[-num_lines - 1 : -1])
        if of_lines is not None and math.isclose(fmean(of_lines), value, rel_tol=MEAN_TOLERANCE, abs_tol=1e-4):
            return value, of_lines
    return value, None


def _line_scores(rows: Sequence[list[str]]) -> list[float] | None:
    """Return the last number of each row if the rows differ only in their numbers; else None."""
    scores: list[float] = []
    forms: set[tuple[str, ...]] = set()
    for row in rows:
        score = _number(row[-1])
        if score is None:
            return None
        scores.append(score)
        forms.add(tuple("" if _number(word) is not None else word for word in row))
    return scores if len(forms) == 1 else None


def _numbers(words: Sequence[str]) -> list[float]:
    numbers = [_number(word) for word in words]
    return [number for number in numbers if number is not None]


def _number(word: str) -> float | None:
    """Return the finite number that a word is, or None."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in word else None
