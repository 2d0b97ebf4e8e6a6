"""docs/laptop-to-cluster.md: the tests that it names are there, and NCCL's words are those of the library that is installed."""

import mmap
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.runs.composition import CONF

ROOT = CONF.parent
PAGE = (ROOT / "docs" / "laptop-to-cluster.md").read_text()
OF_NCCL = (
    "Multiple Ranks are using the same GPU/Partition|Duplicate GPU detected",  # the second: up to 2.28, which torch 2.11 has
    "Bootstrap : no socket interface found",
    "NET/IB : No device found.",
    "Mismatched NCCL version detected",
    "exceeded error retry count",
    "/dev/shm/nccl-",
    "Cuda failure",
)


def test_each_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 15
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


def test_each_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:deploy|scripts|benchmarks)/[\w.]+)`", PAGE))
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)


def test_nccl_says_what_the_page_says() -> None:
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    if spec is None or tuple(map(int, version("torch").split(".")[:2])) < (2, 11):
        pytest.skip("NCCL is not installed, or an old one, which says it in other words")
    (library,) = (Path(place) / "lib" / "libnccl.so.2" for place in spec.submodule_search_locations or ())
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for words in OF_NCCL:
            assert all(either in PAGE for either in words.split("|"))
            assert any(content.find(either.encode()) >= 0 for either in words.split("|")), words
