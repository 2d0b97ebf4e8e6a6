"""deploy/: what it names is there, and what it starts is accepted. Neither containers nor Kubernetes are run here."""

import copy
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from omegaconf import DictConfig
from torch.distributed.run import get_args_parser, parse_args

from lockstep.config.plan import Plan
from lockstep.errors import ExitCode
from lockstep.runs.composition import CONF, compose
from lockstep.runs.validation import check

ROOT = CONF.parent
IMAGE = (ROOT / "deploy" / "Containerfile").read_text()
JOB: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "pytorchjob.yaml").read_text())
REPLICAS = JOB["spec"]["pytorchReplicaSpecs"]
TEMPLATE = REPLICAS["Master"]["template"]
(CONTAINER,) = TEMPLATE["spec"]["containers"]
ONE_NODE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "job.yaml").read_text())
ONE_POD = ONE_NODE["spec"]["template"]["spec"]
(TRAIN,) = ONE_POD["containers"]
MANIFESTS = {  # an operator's own kind is none of Kubernetes', but its pods are
    "job.yaml": ONE_NODE,
    "pods of pytorchjob.yaml": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": TEMPLATE["spec"]},
}


def test_the_image_has_what_a_run_needs_and_its_context_lets_it_through() -> None:
    copied = re.findall(r"^COPY (.+)$", IMAGE.replace("\\\n", " "), re.MULTILINE)
    names = {source for line in copied for source in line.split()[:-1]}
    assert names >= {"requirements.lock", "pyproject.toml", "train.py", "src", "conf", "scripts"}
    assert all((ROOT / name).exists() for name in names)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == names


def composed(arguments: list[str], data: Path) -> DictConfig:
    cfg = compose(*(one.replace("/runs/data", str(data)) for one in arguments if not one.startswith("hydra.")))
    check(cfg)
    return cfg


def test_the_job_s_command_is_one_that_torchrun_and_train_py_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    if "--shutdown-timeout" not in get_args_parser().format_help():
        pytest.skip("the torchrun of the image has --shutdown-timeout, this one has not")
    arguments = parse_args([*CONTAINER["command"][1:], *CONTAINER["args"]])
    assert f"WORKDIR {Path(arguments.training_script).parent}\n" in IMAGE
    nodes = sum(replica["replicas"] for replica in REPLICAS.values())
    plan = Plan.from_config(composed(arguments.training_script_args, tmp_path), (int(JOB["spec"]["nprocPerNode"]), nodes))
    assert (plan.devices, plan.num_nodes, plan.world_size) == (4, 2, 8)
    assert int(CONTAINER["resources"]["limits"]["nvidia.com/gpu"]) == plan.devices


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_schemas_accept_it_and_no_other_key(name: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], "1.37", strict=True)
    changed = copy.deepcopy(MANIFESTS[name])
    (changed["spec"].get("template") or changed)["spec"]["containers"][0]["comand"] = ["true"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(changed, "1.37", strict=True)


def test_the_job_of_one_node_is_one_that_train_py_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    cfg = composed(TRAIN["args"], tmp_path)
    assert Plan.from_config(cfg).world_size == int(TRAIN["resources"]["limits"]["nvidia.com/gpu"]) == 4
    assert cfg.guards.preemption.deadline < ONE_POD["terminationGracePeriodSeconds"]
    rules = [rule for rule in ONE_NODE["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    values = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules}
    assert values == {"FailJob": [ExitCode.REFUSED], "Ignore": [ExitCode.PREEMPTED]}  # not tried again, not counted


def test_a_pod_in_the_place_of_another_goes_on_with_its_run(tmp_path: Path) -> None:
    """Its script, with a program that prints its arguments in the place of Python."""
    (tmp_path / "python").write_text('#!/bin/sh\necho "$*"\nexit 75\n')
    (tmp_path / "python").chmod(0o755)
    run = tmp_path / "run"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RUN": str(run), "PROGRAM": "train.py"}

    def started() -> tuple[int, str]:
        done = subprocess.run([*TRAIN["command"], "seed=1", "a='b c'"], env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert started() == (75, f"train.py hydra.run.dir={run} seed=1 a='b c'\n")
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra" / "config.yaml").touch()
    assert started() == (75, f"train.py resume={run}\n")
