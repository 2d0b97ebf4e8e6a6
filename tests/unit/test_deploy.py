"""deploy/: schemas accept it, and train.py takes what it starts. Neither containers nor Kubernetes are run here."""

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from torch.distributed.run import get_args_parser, parse_args

from lockstep.config.plan import Plan
from lockstep.errors import ExitCode
from lockstep.runs.composition import CONF, compose
from lockstep.runs.validation import check

JOB, PYTORCH_JOB = (yaml.safe_load((CONF.parent / "deploy" / name).read_text()) for name in ("job.yaml", "pytorchjob.yaml"))
POD, NODE = JOB["spec"]["template"]["spec"], PYTORCH_JOB["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


def plan(arguments: list[str], data: Path, started: tuple[int, int] | None = None) -> Plan:
    cfg = compose(*(one.replace("/runs/data", str(data)) for one in arguments if not one.startswith("hydra.")))
    check(cfg)
    assert cfg.guards.preemption.deadline < POD["terminationGracePeriodSeconds"]
    return Plan.from_config(cfg, started)


def test_schemas_and_train_py_accept_a_job_of_one_node_and_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    kubernetes_validate.validate(JOB, "1.37", strict=True)
    assert plan(POD["containers"][0]["args"], tmp_path).world_size == 4
    rules = [rule for rule in JOB["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    values = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules}
    assert values == {"FailJob": [ExitCode.REFUSED], "Ignore": [ExitCode.PREEMPTED]}  # not tried again, not counted
    if "--shutdown-timeout" not in get_args_parser().format_help():
        pytest.skip("the torchrun of the image has --shutdown-timeout, this one has not")
    (container,) = NODE["containers"]
    script = parse_args([*container["command"][1:], *container["args"]])
    assert plan(script.training_script_args, tmp_path, started=(4, 2)).world_size == 8


def test_a_pod_in_the_place_of_another_goes_on_with_its_run(tmp_path: Path) -> None:
    """A program that prints its arguments takes the place of Python."""
    (tmp_path / "python").write_text('#!/bin/sh\necho "$*"\nexit 75\n')
    (tmp_path / "python").chmod(0o755)
    run, command = tmp_path / "run", [*POD["containers"][0]["command"], "seed=1", "a='b c'"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RUN": str(run), "PROGRAM": "train.py"}
    for arguments in (f"hydra.run.dir={run} seed=1 a='b c'", f"resume={run}"):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (75, f"train.py {arguments}\n")
        (run / ".hydra").mkdir(parents=True, exist_ok=True)
        (run / ".hydra" / "config.yaml").touch()
