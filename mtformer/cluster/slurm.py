"""Training in several processes that Slurm starts (https://slurm.schedmd.com)."""

import os
import re

FIRST_PORT = 20_000
"""Lowest port at which process 0 listens."""
NUM_PORTS = 10_000
"""Number of ports that jobs are spread over, so that jobs on one machine rarely use the same."""


def set_ranks() -> None:
    """If `srun` started several tasks, set the environment variables of `torchrun` from those of Slurm.

    Process 0 is on the first node of the step; it listens on a port that depends on the job.
    """
    num_tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if num_tasks == "1" or "RANK" in os.environ:
        return

    job = os.environ["SLURM_JOB_ID"]
    port = str(FIRST_PORT + int(job) % NUM_PORTS)
    os.environ |= {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": num_tasks,
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": os.environ.get("MASTER_PORT", port),
        "TORCHELASTIC_RUN_ID": job,  # PyTorch recognizes distributed processes by this variable
    }


def first_host(nodes: str) -> str:
    """Return the first name in a list of Slurm's form: gpu03 of gpu[03-05,9],login."""
    match = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    assert match is not None, "Slurm names at least one node"
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix}"
