"""The default data and how it is split."""

from typing import Any

import numpy
import pytest
import torch
from sklearn.datasets import load_digits

from lockstep.datamodules import Digits


def test_digits_come_in_three_splits() -> None:
    digits = Digits()
    assert digits.describe() == {"train": 1293, "val": 144, "test": 360}  # 1797 - 360 = 1437, a tenth of them 144
    assert digits.spec.input_shape == (1, 8, 8)
    assert digits.spec.num_outputs == len(digits.spec.class_names or ()) == 10
    for split in (digits.splits.train, digits.splits.val, digits.splits.test):
        assert split.tensors[0].shape == (len(split), 1, 8, 8)
        assert split.tensors[0].dtype == torch.float32
        assert 0 == split.tensors[0].min() < split.tensors[0].max() == 1
        assert split.tensors[1].shape == (len(split),)


def test_the_last_digits_are_tested_and_the_others_divided_by_the_seed() -> None:
    bunch: Any = load_digits()
    first, again, other = (Digits(seed=seed).splits for seed in (3, 3, 4))
    for splits in (first, other):
        assert numpy.array_equal(splits.test.tensors[0].squeeze(1) * 16, bunch.images[-360:])
        assert numpy.array_equal(splits.test.tensors[1], bunch.target[-360:])
        both = torch.cat([splits.train.tensors[0], splits.val.tensors[0]]).flatten(1) * 16
        assert sorted(both.tolist()) == sorted(bunch.data[:-360].tolist())
    assert torch.equal(first.val.tensors[0], again.val.tensors[0])
    assert not torch.equal(first.val.tensors[0], other.val.tensors[0])


def test_no_validation_fraction_is_no_validation_split() -> None:
    digits = Digits(val_fraction=0.0)
    assert digits.val_dataloader() == []
    assert digits.describe() == {"train": 1437, "val": 0, "test": 360}


@pytest.mark.parametrize(("length", "fraction", "held_out"), [(10, 0.1, 1), (10, 0.0, 0), (1437, 0.1, 144), (7, 0.9, 6)])
def test_a_seeded_split_is_disjoint_and_complete_and_in_order(length: int, fraction: float, held_out: int) -> None:
    rest, drawn = (part.tolist() for part in Digits(val_fraction=fraction, seed=5).split(length))
    assert len(drawn) == held_out
    assert (rest, drawn) == (sorted(rest), sorted(drawn))
    assert sorted(rest + drawn) == [*range(length)]


def test_each_sample_is_in_the_validation_split_of_one_fold() -> None:
    folds = [Digits(folds=3, fold=fold, seed=5).split(10) for fold in range(3)]
    assert sorted(sample for _, drawn in folds for sample in drawn.tolist()) == [*range(10)]
    assert all(sorted([*rest.tolist(), *drawn.tolist()]) == [*range(10)] for rest, drawn in folds)
