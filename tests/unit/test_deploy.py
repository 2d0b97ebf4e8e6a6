"""deploy/: what it names is there, and what it starts is accepted. Neither containers nor Kubernetes are run here."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import parse_args

from lockstep.config.checks import check
from lockstep.config.plan import Plan
from lockstep.runs.composition import CONF, compose

ROOT = CONF.parent
IMAGE = (ROOT / "deploy" / "Containerfile").read_text()
JOB: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "pytorchjob.yaml").read_text())
REPLICAS = JOB["spec"]["pytorchReplicaSpecs"]
POD = REPLICAS["Master"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def instructions(name: str) -> list[str]:
    """What comes after an instruction's name, its lines joined."""
    return re.findall(rf"^{name} (.+)$", IMAGE.replace("\\\n", " "), re.MULTILINE)


def copied() -> list[Path]:
    return [ROOT / source for line in instructions("COPY") for source in line.split()[:-1]]


def test_the_image_has_what_a_run_needs_and_its_context_lets_it_through() -> None:
    names = {str(path.relative_to(ROOT)) for path in copied()}
    assert names >= {"requirements.lock", "pyproject.toml", "train.py", "src", "conf", "scripts"}
    assert all(path.exists() for path in copied())
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == names
    assert "*" in ignored


def test_the_image_installs_locked_packages_and_is_not_run_as_root() -> None:
    locked, own = (line for line in instructions("RUN") if "pip install" in line)
    assert "--require-hashes -r requirements.lock" in locked
    assert "--no-deps" in own
    assert instructions("USER") == [f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['fsGroup']}"]
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert instructions("FROM")[0].partition(":")[2].partition("-")[0] == "3.11"


def test_the_job_s_command_is_one_that_torchrun_and_train_py_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    arguments = parse_args([*CONTAINER["command"][1:], *CONTAINER["args"]])
    assert CONTAINER["command"][0] == "torchrun"
    assert Path(arguments.training_script) == Path(instructions("WORKDIR")[0]) / "train.py"
    overrides = [one.replace("/runs/data", str(tmp_path)) for one in arguments.training_script_args]
    cfg = compose(*(override for override in overrides if not override.startswith("hydra.")))
    check(cfg)
    nodes = sum(replica["replicas"] for replica in REPLICAS.values())
    plan = Plan.from_config(cfg, (int(JOB["spec"]["nprocPerNode"]), nodes))
    assert (plan.devices, plan.num_nodes, plan.world_size) == (4, 2, 8)
    assert int(CONTAINER["resources"]["limits"]["nvidia.com/gpu"]) == plan.devices


def test_what_is_waited_for_when_a_pod_is_taken_away_is_longer_the_further_out_it_is() -> None:
    arguments = parse_args([*CONTAINER["command"][1:], *CONTAINER["args"]])
    deadline = compose(*(one for one in CONTAINER["args"] if one.startswith("guards."))).guards.preemption.deadline
    assert deadline < arguments.shutdown_timeout < POD["terminationGracePeriodSeconds"]


def test_a_pod_that_is_started_again_finds_its_run() -> None:
    assert parse_args([*CONTAINER["command"][1:], *CONTAINER["args"]]).rdzv_id == JOB["metadata"]["name"]
    mounted = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    (claim,) = (volume["name"] for volume in POD["volumes"] if "persistentVolumeClaim" in volume)
    for key in ("hydra.run.dir", "datamodule.data_dir"):
        (value,) = (one.partition("=")[2] for one in CONTAINER["args"] if one.startswith(f"{key}="))
        assert Path(value).is_relative_to(mounted[claim])
    assert [mounted[volume["name"]] for volume in POD["volumes"] if "emptyDir" in volume] == ["/dev/shm"]
    assert [replica["restartPolicy"] for replica in REPLICAS.values()] == ["OnFailure"] * len(REPLICAS)


@pytest.mark.parametrize("name", ["Containerfile", "pytorchjob.yaml"])
def test_each_file_says_that_it_was_not_run(name: str) -> None:
    head = (ROOT / "deploy" / name).read_text().partition("\n\n")[0]
    assert "Not run here" in head
    assert fnmatch(head, "*tests/unit/test_deploy.py*")
