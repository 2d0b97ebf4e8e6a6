"""What a tracker was given, read without lockstep.extras.tracking.loggers."""
# pyright: reportMissingImports=false
# (either library may be absent)

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, FULL, LAST = 32768, 1, 4


def mlflow_points(uri: str, experiment: str) -> tuple[Any, list[tuple[int, str, float]]]:
    """The only run of an experiment, and each of its points as often as it is there."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    result = client.get_experiment_by_name(experiment)
    assert result is not None
    (run,) = client.search_runs([result.experiment_id])
    history = [point for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)]
    return run, sorted((point.step, point.key, point.value) for point in history)


def wandb_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of an offline run's last life, as `wandb sync` reads them."""
    from wandb.proto.wandb_internal_pb2 import Record

    result = []
    (path,) = (run / "wandb" / "latest-run").glob("*.wandb")
    for data in _wandb_records(path):
        record = Record()
        record.ParseFromString(data)
        if items := record.history.item:
            result.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return result


def _wandb_records(path: Path) -> Iterator[bytes]:
    """W&B's log is LevelDB's (doc/log_format.md there) after seven bytes of its own: blocks of records, or of parts of one, each
    with a head of seven bytes."""
    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield whole
            whole = b""
