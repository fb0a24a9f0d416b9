"""Variables of Slurm."""

import os

import pytest

from mtformer.cluster.slurm import first_host, set_ranks


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("a[7,9]", "a7"),
        ("rack-2-n[10-11]", "rack-2-n10"),
        ("n[1-2]-ib,x", "n1-ib"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_variables_of_torchrun_are_set_from_those_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = {
        "SLURM_JOB_ID": "1234567",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NODELIST": "n[3-4]",
    }
    monkeypatch.setattr(os, "environ", dict(slurm))
    set_ranks()
    assert {key: value for key, value in os.environ.items() if key not in slurm} == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "n3",
        "MASTER_PORT": "24567",
        "TORCHELASTIC_RUN_ID": "1234567",
    }


@pytest.mark.parametrize("variables", [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "4", "RANK": "2"}])
def test_one_task_and_torchrun_are_left_alone(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    monkeypatch.setattr(os, "environ", dict(variables))
    set_ranks()
    assert os.environ == variables
