"""What a run on one machine opens to the network: nothing beyond the loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from lockstep.launchers.environment import PARENT_PIPE, this_rank
from lockstep.launchers.supervisor import reserved_port
from lockstep.trainer.strategies import _store_on_loopback


def listening() -> set[str]:
    """The ADDRESS:PORT this process listens on, as /proc/net has them: hexadecimal, IPv4 in the machine's order."""
    inodes = {file.stat().st_ino for file in Path("/proc/self/fd").iterdir() if file.exists()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and int(row[9]) in inodes}


@pytest.fixture
def _rank_zero(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with reserved_port() as port:
        variables = {PARENT_PIPE: "-1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (variables | {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}).items():
            monkeypatch.setenv(name, value)
        this_rank.cache_clear()
        yield
        this_rank.cache_clear()


@pytest.mark.usefixtures("_rank_zero", "no_process_group")
def test_a_local_run_listens_on_the_loopback_alone() -> None:
    before = listening()
    store = _store_on_loopback()
    dist.init_process_group("gloo")  # as Lightning does
    del store
    try:
        dist.barrier()
        assert {place.partition(":")[0] for place in listening() - before} == {"0100007F"}
    finally:
        dist.destroy_process_group()
