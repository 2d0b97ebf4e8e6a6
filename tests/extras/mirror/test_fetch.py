"""A run is brought back from its copy: whole, the newest state of it, and never over something else."""

from pathlib import Path

import pytest
from stores import run_in, save

from lockstep.checkpointing import latest_valid_checkpoint, read_checkpoint
from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.extras.mirror.fetch import bring
from lockstep.extras.mirror.mirror import Mirror, copy_url
from lockstep.extras.mirror.remote import Remote
from lockstep.runs import resume
from lockstep.runs.resume import command_to_continue


@pytest.fixture(autouse=True)
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(resume, "this_rank", lambda: None)
    monkeypatch.chdir(tmp_path)
    return f"file://{tmp_path}/store"


@pytest.fixture
def run(tmp_path: Path, prefix: str) -> Path:
    """Of which there is a copy."""
    folder = run_in(tmp_path / "logs" / "name" / "run")
    copy(folder, prefix)
    return folder


def copy(folder: Path, prefix: str) -> None:
    mirror = Mirror(copy_url(prefix, folder), folder, wait=20)
    mirror.start()
    mirror.finish()


def read_step(folder: Path) -> int:
    return read_checkpoint("last", folder / "checkpoints" / "last.ckpt")["global_step"]


def vanish(folder: Path) -> dict[str, bytes]:
    """What was in it."""
    held = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folder.rename(folder.with_name("gone"))
    return held


@pytest.mark.parametrize("asked", ["resume={url}", "resume={run} mirror={prefix}"])
def test_a_run_that_is_not_here_any_more_goes_on_from_its_copy(asked: str, run: Path, prefix: str) -> None:
    held = vanish(run)
    asked = asked.format(url=f"{prefix}/logs/name/run", run=run, prefix=prefix)
    command = command_to_continue([*asked.split(), "test=false"])
    expected = ["--config-name", "train", "model=mlp", f"mirror={prefix}", "test=false"]
    expected.append(f"hydra.run.dir={quote(str(run))}")
    assert command == [word for word in [*expected, f"resume={quote(str(run))}"] if word != f"mirror={prefix}" or word in asked]
    copied = held.keys() - {"mirror.json", "checkpoints/previous.ckpt"}
    assert {name: (run / name).read_bytes() for name in copied} == {name: held[name] for name in copied}
    assert latest_valid_checkpoint(run / "checkpoints") == run / "checkpoints" / "last.ckpt"
    assert copy_url(prefix, run) == f"{prefix}/logs/name/run"


def test_what_is_here_is_left_alone_unless_its_copy_is_newer(run: Path, prefix: str, capsys: pytest.CaptureFixture) -> None:
    url = f"{prefix}/logs/name/run"
    save(run, 2)  # not copied yet
    bring(url, run)
    assert (read_step(run), capsys.readouterr().err) == (2, "")
    elsewhere = run.with_name("elsewhere")
    bring(url, elsewhere)
    save(elsewhere, 7)
    copy(elsewhere, prefix)
    capsys.readouterr()
    bring(url, run)
    assert (read_step(run), read_step(run.with_name("run.before-1"))) == (7, 2)
    assert capsys.readouterr().err.splitlines() == [
        f"{run} is older than its copy: moved to run.before-1.",
        f"Fetching {url} to {run}.",
    ]


def test_what_is_no_copy_of_this_run_is_refused_and_changes_nothing(run: Path, prefix: str, tmp_path: Path) -> None:
    url, other = f"{prefix}/logs/name/run", run_in(tmp_path / "other", "another id")
    lines = {
        (f"{prefix}/none", run): f"resume={prefix}/none: is no copy of a run; accepted is the URL that its mirror.json says",
        (url, other): f"resume={url}: {other} is there already and not that run's; accepted is another place for it",
        (f"{other.as_uri()}/run.json", run): f"resume={other.as_uri()}/run.json: can't be read (",
    }
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for (asked, directory), line in lines.items():
        with pytest.raises(ConfigError) as refused:
            bring(asked, directory)
        assert str(refused.value).startswith(line)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.usefixtures("run")
def test_what_is_fetched_is_there_whole_or_not_at_all(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, fresh = f"{prefix}/logs/name/run", tmp_path / "fresh"
    (tmp_path / ".fresh.partial").mkdir()  # of one that was killed
    (tmp_path / ".fresh.partial" / "status.json").write_text("{}")
    monkeypatch.setattr(Remote, "names", lambda _: ["run.json", "../../planted"])
    with pytest.raises(ConfigError, match=r"can't be fetched \(\.\./\.\./planted leads out of the run's directory\)$"):
        bring(url, fresh)
    assert not [*tmp_path.glob("*fresh*"), *tmp_path.glob(".*"), *tmp_path.rglob("planted")]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    bring(url, fresh)
    assert read_step(fresh) == 1
