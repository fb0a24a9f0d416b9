"""Fixtures of the attacks: their number, and a record of those that held."""

from collections.abc import Callable

import pytest
from attack_tools import Attacks, Held


@pytest.fixture(scope="session")
def attacks(pytestconfig: pytest.Config) -> Attacks:
    """Return a function that multiplies a number of attacks by the option `--attacks`; at least 1."""
    factor: float = pytestconfig.getoption("--attacks")
    return lambda number: max(1, round(number * factor))


@pytest.fixture
def held(record_property: Callable[[str, object], None]) -> Held:
    """Return a function (attack, number that held, number tried) that requires all; a table shows the counts."""

    def record(name: str, num_held: int, num_tried: int) -> None:
        record_property("held", (name, num_held, num_tried))
        assert num_held == num_tried, f"{name}: {num_held} of {num_tried} held"

    return record
