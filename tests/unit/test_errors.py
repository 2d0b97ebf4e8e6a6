"""Errors for people: one line, wherever they come from."""

import pytest
from torch.utils.data import DataLoader, Dataset

from lockstep.errors import ConfigError, config_error


class Refusing(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise config_error("datamodule.data_dir", "cat.png", "not a readable image\n(two lines)")


def test_a_refusal_is_one_line() -> None:
    """With all that a library has said, whose message may be several."""
    error = config_error("datamodule.data_dir", "data", "could not be downloaded (Tried mirror:\n  got: no network\n)")
    assert str(error) == "datamodule.data_dir=data: could not be downloaded (Tried mirror: got: no network )"


def test_a_data_worker_s_refusal_is_its_own_line() -> None:
    with pytest.raises(ConfigError) as raised:
        next(iter(DataLoader(Refusing(), num_workers=1)))
    assert str(raised.value) == "datamodule.data_dir=cat.png: not a readable image (two lines)"
