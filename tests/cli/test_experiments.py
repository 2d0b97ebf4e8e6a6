"""Every experiment trains a step, evaluates and tests as it is shipped; in full they are run by hand, see their headers."""

from pathlib import Path

import pytest
from commands import ROOT, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")))
def test_it_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    given: list[str] = []
    if name == "mnist_ddp":
        given = [f"datamodule.data_dir={request.getfixturevalue('mnist')}"]
    elif name == "finetune_digits":
        given = ["init_from=cnn/checkpoints/last.ckpt"]
        assert train("debug=fast", "model=cnn", "hydra.run.dir=cnn", cwd=tmp_path).returncode == 0
    train(f"experiment={name}", "debug=fast", "hydra.run.dir=run", *given, cwd=tmp_path, code=0)
    assert (tmp_path / "run" / "metrics.json").is_file()
