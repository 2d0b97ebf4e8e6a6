from collections.abc import Iterator

import pytest

from lockstep.extras.parity.processes import Processes


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Started once for all comparisons of a file, and ended after them: they look for the next one all the time."""
    with Processes(4, tmp_path_factory.mktemp("parity")) as started:
        yield started
