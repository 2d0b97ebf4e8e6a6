"""What a job asks SLURM for, by the settings of the launcher."""

import pytest

from lockstep.config.plan import Plan
from lockstep.runs.composition import compose
from lockstep.slurm.launcher import SlurmExecutor


@pytest.mark.parametrize(
    ("overrides", "gpus", "flags"),
    [
        (["trainer.devices=4"], 4, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=16", "--gres=gpu:4"]),
        (
            ["trainer.devices=4", "trainer.num_nodes=2"],
            4,
            ["--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=4", "--gres=gpu:4"],
        ),
        (["trainer=cpu", "trainer.devices=2"], 4, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=8"]),
    ],
)
def test_a_job_asks_for_what_its_processes_need(overrides: list[str], gpus: int, flags: list[str]) -> None:
    plan = Plan.from_config(compose(*overrides), node_gpus=gpus)
    assert SlurmExecutor().flags(plan) == (*flags, "--requeue", "--signal=USR1@120")
    given = SlurmExecutor(partition="long", time="1-00:00:00", mem="9G", gres="gpu:a100", warning=60, sbatch=["--no-requeue"])
    more = [flag.replace("gpu:", "gpu:a100:") for flag in flags] + ["--partition=long", "--time=1-00:00:00", "--mem=9G"]
    assert given.flags(plan) == (*more, "--requeue", "--signal=USR1@60", "--no-requeue")
