"""Jobs that a cluster has without the sweep's process, by what the cluster says and what they have left. Nothing of Ray's is
started."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_sweep import job, sweep
from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.ray_cluster import left
from lockstep.extras.ray_cluster.launcher import RayExecutor
from lockstep.extras.ray_cluster.left import LeftJobs
from lockstep.extras.ray_cluster.settings import RaySettings, Share
from lockstep.runs.composition import compose
from lockstep.sweeps.executor import queues
from lockstep.sweeps.local import refuse_queued
from lockstep.sweeps.manifest import Manifest


class Cluster:
    """What is left to it, by name."""

    def __init__(self, address: str = "10.0.0.1:6379") -> None:
        self.left: dict[str, tuple[Any, ...]] = {}
        self.gcs_address, self.settings = address, RaySettings()

    def leave(self, share: Share, name: str, *arguments: Any) -> None:
        self.left[name] = (share, *arguments)

    def names(self) -> set[str]:
        return {*self.left, "ray-00000000-another-sweep-s"}


def four_left(folder: Path) -> tuple[Manifest, Any, LeftJobs]:
    """A sweep whose jobs 0 to 3 were left to a cluster, by their numbers."""
    cluster: Any = Cluster()
    jobs = [job(folder, number, seed=number) for number in range(4)]
    manifest, own = sweep(folder, dict.fromkeys(jobs, "waiting")), LeftJobs(folder, cluster)
    share = Share(1, 1, (("CPU", 1.0),))

    def begin(one: Any, queue: str) -> list[str]:
        one.directory.mkdir(exist_ok=True)
        manifest.update(one.key, status="running", attempts=[{"queue": queue, "started": 1.0, "ended": None, "code": None}])
        return ["python", f"{one.key}"]

    for one in jobs:
        own.leave(one, share, begin)
    return manifest, cluster, own


def states(manifest: Manifest) -> list[tuple[str, str | None]]:
    return [(entry["status"], entry["reason"]) for entry in manifest.jobs.values()]


def test_each_is_as_the_cluster_and_its_directory_say(tmp_path: Path) -> None:
    """The first has begun, the second waits; the third has ended with a code, and the last was lost with its worker."""
    (tmp_path / "sweep").mkdir()
    manifest, cluster, own = four_left(tmp_path / "sweep")
    places = [*left.places(manifest).values()]
    for number, content in ((0, {"started": 5.0}), (2, {"started": 5.0, "ended": 9.0, "code": 1}), (3, {"started": 5.0})):
        own.file(places[number]).write_text(json.dumps(content))
    (tmp_path / "sweep" / manifest.jobs[f"{3:012x}"]["directory"] / ".hydra").mkdir()
    for number in (2, 3):
        del cluster.left[places[number]]
    found = left.reconcile(manifest, LeftJobs(tmp_path / "sweep", cluster))
    assert [*found] == [f"{0:012x}", f"{1:012x}"]
    assert states(manifest) == [
        ("running", None),
        ("waiting", "waits until Ray has a place for it"),
        ("failed", "ended with code 1"),
        ("interrupted", "Ray has lost its worker"),
    ]
    assert manifest.jobs[f"{2:012x}"]["attempts"][-1] | {"queue": ""} == {
        "queue": "",
        "started": 5.0,
        "ended": 9.0,
        "code": 1,
        "reason": "ended with code 1",
    }
    assert [*manifest.in_queue()] == [*found]


def test_one_that_was_asked_to_end_was_interrupted_whatever_its_code_is(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    manifest, cluster, own = four_left(tmp_path / "sweep")
    place = own.file(left.places(manifest)[f"{0:012x}"])
    place.write_text(json.dumps({"started": 5.0, "ended": 9.0, "code": 130, "was_asked": True}))
    assert len(left.reconcile(manifest, LeftJobs(tmp_path / "sweep", cluster))) == 3
    assert states(manifest)[0] == ("interrupted", "asked to end")


def test_a_manifest_that_was_lost_does_not_start_them_a_second_time(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    manifest, cluster, _ = four_left(tmp_path / "sweep")
    for entry in manifest.jobs.values():
        entry["attempts"] = []
    assert len(left.reconcile(manifest, LeftJobs(tmp_path / "sweep", cluster))) == 4


def test_another_cluster_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    manifest, _, _ = four_left(tmp_path / "sweep")
    other: Any = Cluster("10.0.0.2:6379")
    with pytest.raises(
        ConfigError, match=r"^hydra.launcher.address=10.0.0.2:6379: jobs of this sweep are on the cluster at 10.0.0.1"
    ):
        left.reconcile(manifest, LeftJobs(tmp_path / "sweep", other))


def test_who_looks_without_the_cluster_is_told_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep").mkdir()
    manifest, _, _ = four_left(tmp_path / "sweep")
    monkeypatch.setattr(left, "RayCluster", lambda _: Cluster("10.0.0.2:6379"))
    monkeypatch.setattr(left.importlib.util, "find_spec", lambda _: True)
    left.show_state(manifest)
    assert {status for status, _ in states(manifest)} == {"unknown"}


def test_a_queue_leaves_what_another_one_has(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    manifest, _, own = four_left(tmp_path / "sweep")
    before = states(manifest)
    for other in (queue for queue in queues() if queue is not left):
        other.show_state(manifest)
        assert (states(manifest), other.cancel(manifest)) == (before, 0)
    with pytest.raises(ConfigError, match=r"^hydra/launcher=lockstep: 4 job\(s\) of this sweep are in a queue"):
        refuse_queued(manifest, "lockstep")
    for entry in manifest.jobs.values():
        entry["attempts"][-1]["queue"] = "lockstep-12345678-0_1"
    with pytest.raises(ConfigError, match=r"^hydra/launcher=ray: 4 job"):
        RayExecutor(own.folder.parent, RaySettings()).reconcile(manifest)
    left.show_state(manifest)
    assert (states(manifest), left.cancel(manifest)) == (before, 0)


def test_what_can_not_go_on_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^hydra.launcher.detach=true: a Ray of the sweep's own ends with it; accepted is "):
        RaySettings(detach=True)
    executor: Any = RayExecutor(tmp_path, RaySettings(address="auto", detach=True))
    assert (executor.detaches, executor.ends_with_sweep) == (True, False)
    config = OmegaConf.create({"hydra": {"launcher": {"_target_": "x", "address": "auto", "detach": True}}})
    plan = Plan.from_config(compose("trainer=cpu", "trainer.num_nodes=2"), node_gpus=0)
    with pytest.raises(ConfigError, match=r"^trainer.num_nodes=2: the parts of a job on several nodes are brought together by "):
        executor.resources(config, plan)
