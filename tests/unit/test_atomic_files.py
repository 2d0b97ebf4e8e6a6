"""Files that several processes read and write."""

from pathlib import Path

from lockstep.atomic_files import read_json


def test_what_another_writer_has_as_nan_is_null(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"metrics": {"val/loss": NaN}, "wall_time": -Infinity}')
    assert read_json(tmp_path / "metrics.json") == {"metrics": {"val/loss": None}, "wall_time": None}
