"""Fixtures for the attacks: their number, and the record of those that passed."""

from collections.abc import Callable

import pytest
from attack_tools import Attacks, Passed


@pytest.fixture(scope="session")
def attacks(pytestconfig: pytest.Config) -> Attacks:
    """Return a function that multiplies a number of attacks by the option `--attacks`; the result is at least 1."""
    factor: float = pytestconfig.getoption("--attacks")
    return lambda number: max(1, round(number * factor))


@pytest.fixture
def passed(record_property: Callable[[str, object], None]) -> Passed:
    """Return a function (attack, number passed, number tried) that records the counts and fails unless all passed."""

    def record(name: str, num_passed: int, num_tried: int) -> None:
        record_property("held", (name, num_passed, num_tried))
        assert num_passed == num_tried, f"{name}: {num_passed} of {num_tried} passed"

    return record
