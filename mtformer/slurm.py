"""Training processes that Slurm's `srun` starts, without `torchrun`."""

import os
import re


def set_ranks() -> None:
    """If `srun` started several tasks, set the environment variables of `torchrun` from those of Slurm.

    Process 0 is on the first node of the step; it listens on a port that depends on the job.
    """
    size = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size == "1" or "RANK" in os.environ:
        return
    job = os.environ["SLURM_JOB_ID"]
    os.environ |= {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": os.environ.get("MASTER_PORT", str(20_000 + int(job) % 10_000)),
        "TORCHELASTIC_RUN_ID": job,  # PyTorch recognizes distributed processes by this variable
    }


def first_host(nodes: str) -> str:
    """Return the first name in a list of Slurm's form: gpu03 of gpu[03-05,9],login."""
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    assert found is not None, "Slurm names at least one node"
    return "".join(part or "" for part in found.groups())
