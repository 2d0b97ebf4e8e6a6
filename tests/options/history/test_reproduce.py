"""The code that a run keeps, and that scripts/reproduce.py brings back."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from bitwise import differences
from commands import checkout as copy_checkout
from commands import environment, python

from lockstep.callbacks.code import KeepCode, check_out, describe_code
from lockstep.checkpointing import read_checkpoint
from lockstep.errors import ConfigError


def git(folder: Path, *arguments: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *own, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With one committed file of each kind that a working tree changes."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("logs\n")
    for name in ("changed.py", "deleted.py", "kept.py"):
        (folder / name).write_text(f"{name}\n")
    (folder / "binary").write_bytes(bytes(range(256)))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def change(folder: Path) -> None:
    (folder / "changed.py").write_text("another\n")
    (folder / "deleted.py").unlink()
    (folder / "binary").write_bytes(bytes(range(255, -1, -1)))
    (folder / "new folder").mkdir()
    (folder / "new folder" / "né\n.py").write_bytes(b"\xff untracked\r\n")
    (folder / "changed.py").chmod(0o755)
    (folder / "link.py").symlink_to("kept.py")
    (folder / "staged.py").write_text("staged\n")
    git(folder, "add", "staged.py")


def content(folder: Path) -> dict[str, object]:
    """Return, for each file that git does not ignore, where it leads, or its bytes and whether it is executable."""
    names = git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    files = {name: folder / name for name in names if name and (folder / name).exists()}
    return {
        name: (path.is_symlink() and path.readlink(), path.read_bytes(), path.stat().st_mode & 0o100)
        for name, path in files.items()
    }


def test_what_a_commit_lacks_is_brought_back(checkout: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(checkout)
    before = git(checkout, "status", "--porcelain"), content(checkout)
    code = describe_code(checkout, 10)
    assert code is not None
    assert (git(checkout, "status", "--porcelain"), content(checkout)) == before  # and nothing is staged
    (checkout / "changed.py").write_text("a third\n")
    check_out(checkout, code, tmp_path / "again")
    assert content(tmp_path / "again") == before[1]
    with pytest.raises(ConfigError, match="; choose a run whose commit is in"):
        check_out(checkout, b"commit " + b"0" * 40, tmp_path / "third")
    (checkout / "table.py").write_bytes(b"\0" * 20_000)
    describe_code(checkout, 10)
    assert caplog.messages == ["code.patch lacks 1 untracked file(s) of over 10 KiB"]


def test_each_start_with_other_code_has_a_file(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(checkout / "train.py")])
    run = tmp_path / "run"
    run.mkdir()
    for text in ("one\n", "two\n", "one\n"):
        (checkout / "changed.py").write_text(text)
        (checkout / "outputs" / ".hydra").mkdir(parents=True, exist_ok=True)
        (checkout / "outputs" / ".hydra" / "config.yaml").write_text(text)  # as an earlier run leaves it
        KeepCode().write(run)
    assert sorted(path.name for path in run.iterdir()) == ["code.2.patch", "code.patch"]
    assert "+one" in (run / "code.patch").read_text()
    assert "+two" in (run / "code.2.patch").read_text()


@pytest.mark.slow
def test_a_dirty_tree_is_reproduced_to_the_bit(tmp_path: Path) -> None:
    """A net is changed and trained, changed again, and the first is brought back."""
    copy = copy_checkout(tmp_path / "copy")
    net = copy / "src" / "lockstep" / "nets" / "mlp.py"
    original = net.read_text()
    assert "nn.ReLU" in original
    net.write_text(original.replace("nn.ReLU", "nn.Tanh"))
    options = ("trainer=cpu", "model=mlp", "test=false", "callbacks=null", "logger=csv", "debug=fast")
    env = {"PYTHONPATH": str(copy / "src")}
    python(copy / "train.py", *options, "hydra.run.dir=logs/first", cwd=copy, fresh=True, **env, code=0)
    net.write_text(original.replace("nn.ReLU", "nn.Sigmoid"))
    done = python(copy / "scripts" / "reproduce.py", "logs/first", tmp_path / "again", cwd=copy, code=0)
    command = ["env", *shlex.split(done.stdout), "hydra.run.dir=logs/second"]
    subprocess.run(command, cwd=copy, env=environment(**env), timeout=150, check=True)
    ends = [read_checkpoint("last", copy / "logs" / name / "checkpoints" / "last.ckpt") for name in ("first", "second")]
    assert not differences(*({name: end[name] for name in ("state_dict", "optimizer_states")} for end in ends))
