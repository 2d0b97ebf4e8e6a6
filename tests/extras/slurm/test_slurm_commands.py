"""SLURM's own commands: what is asked of them, and what is made of their answers."""

from pathlib import Path

import fake_slurm
import pytest
from waiting import wait_for

from lockstep.extras.slurm.commands import (
    Refused,
    Task,
    Unanswered,
    submit,
    tasks,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = fake_slurm.install(tmp_path, monkeypatch)
    (place / "hold").touch()
    return place


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text("exit 0\n")
    return path


@pytest.fixture(autouse=True)
def _let_go(place: Path) -> object:
    """The tasks that wait end."""
    yield
    (place / "hold").unlink(missing_ok=True)
    wait_for(lambda: not any("PENDING" in path.read_text() for path in (place / "tasks").iterdir()))


def test_a_job_is_submitted_from_nowhere_in_particular(place: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")  # as from within another job
    monkeypatch.setenv("SLURM_CONF", "/etc/elsewhere.conf")
    monkeypatch.setenv("LOCKSTEP_PARENT", "7")
    assert submit(script, "ours-0", ["--mem=1G"]) == Task("1", "PENDING")
    assert (place / "calls").read_text() == f"--parsable --job-name=ours-0 --mem=1G {script}\n"
    names = {line.partition("=")[0] for line in (place / "environment").read_text().splitlines()}
    assert "SLURM_CONF" in names
    assert not {"SLURM_NTASKS", "LOCKSTEP_PARENT"} & names
    assert tasks("ours-") == {"ours-0": Task("1", "PENDING", "Priority")}


def test_what_sbatch_refuses_is_said_in_its_words(place: Path, script: Path) -> None:
    (place / "refuses").write_text("sbatch: error: invalid partition specified: x\n")
    with pytest.raises(Refused, match=r"^invalid partition specified: x$"):
        submit(script, "ours-0", ["--partition=x"])
    for words in ("sbatch: error: Unable to contact slurm controller", "Socket timed out on send/recv operation"):
        (place / "refuses").write_text(words)
        with pytest.raises(Unanswered, match=words.removeprefix("sbatch: error: ")):
            submit(script, "ours-0", [])


def test_no_answer_is_no_empty_queue(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tasks("ours-") == {}
    (place / "down").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(Unanswered, match="squeue: slurm_load_jobs error: Unable to contact"):
        tasks("ours-")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unanswered, match=r"squeue: .*No such file or directory"):
        tasks("ours-")
