"""The cores of this machine: how many there are, and how the threads that compute wait for each other."""

import os

SPIN_COUNT = "3000"
"""How often a waiting OpenMP thread (GNU) checks for work before it sleeps.

A longer spin is at best a little faster, as long as all cores are idle. As soon as another process uses one of them, at
the start or later, threads that spin slow down the thread that they wait for. Threads that sleep at once
(`OMP_WAIT_POLICY=PASSIVE`) are slower on idle cores, because the operations of a small model are short
(docs/log/trials.md).
"""


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_spinning() -> None:
    """Let waiting threads sleep soon, unless the environment says otherwise; call it before torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
