"""The copy of a run in S3, for which moto's server stands in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import run_in, save, started, step_at

from lockstep.errors import ConfigError
from lockstep.mirror import check_new, fetch

s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install 'lockstep[s3]'")
server = pytest.importorskip("moto.server", reason="needs moto, which stands in for S3: pip install 'moto[server]'")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore, about itself


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Reached as any S3 is that is not Amazon's: by a variable that its client reads."""
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    host, port = store.get_host_and_port()
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)  # which moto keeps as long as the process lives
    yield "s3://bucket/prefix"
    store.stop()
    s3fs.S3FileSystem.clear_instance_cache()


HYDRA = (".hydra/config.yaml", ".hydra/saved.yaml", ".hydra/overrides.yaml", ".hydra/hydra.yaml")


def test_a_run_is_copied_to_a_bucket_and_comes_back(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_in(tmp_path / "logs" / "name" / "run")
    check_new(bucket, run)
    copy = started(run, bucket)
    save(run, 2)
    copy.finish()
    keys = s3fs.S3FileSystem().find("bucket")
    names = ("checkpoints/last.ckpt", "status.json", "train.log", *HYDRA)
    assert keys == [f"bucket/prefix/logs/name/run/{name}" for name in names]
    run.rename(tmp_path / "gone")
    fetch(f"{bucket}/logs/name/run", run)
    assert step_at(run) == 2
    with pytest.raises(ConfigError, match="has an earlier run; fetch and resume it"):
        check_new(bucket, run)
