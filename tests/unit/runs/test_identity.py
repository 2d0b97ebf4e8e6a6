"""What says which run a directory holds."""

import json
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.runs.identity import Identity, is_resumable


def run_in(directory: Path) -> Path:
    directory.mkdir(parents=True)
    Identity("0123", [], ["seed=1"], None).write(directory)
    return directory


def test_half_an_identity_is_none(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    whole = json.loads((run / "run.json").read_text())
    assert is_resumable(run)
    for damaged in ({**whole, "overrides": ["seed=2"]}, {**whole, "id": "other"}, {"id": whole["id"]}, [], {}):
        (run / "run.json").write_text(json.dumps(damaged))
        with pytest.raises(ConfigError, match=rf"^resume={run}: run.json is damaged .*fork={run}/checkpoints/last.ckpt$"):
            Identity.read(run)
        assert not is_resumable(run)  # a sweep begins its job anew
