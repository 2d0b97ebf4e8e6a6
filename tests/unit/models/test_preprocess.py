"""Standardisation inside the model, against numbers worked out by hand."""

import numpy
import torch
from sklearn.preprocessing import StandardScaler

from lockstep.models.supervised import Preprocess


def test_bytes_become_zero_to_one_and_floats_stay() -> None:
    preprocess = Preprocess((1, 1, 2))
    assert preprocess(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist() == [[[[0.0, 1.0]]]]
    assert preprocess(torch.tensor([[[[0.25, 255.0]]]])).tolist() == [[[[0.25, 255.0]]]]
    assert preprocess(torch.ones(1, 1, 1, 2, dtype=torch.float64)).dtype == torch.float32
    assert preprocess.double()(torch.ones(1, 1, 1, 2, dtype=torch.uint8)).dtype == torch.float64


def test_images_are_standardised_per_channel() -> None:
    preprocess, scaler = Preprocess((2, 1, 2)), StandardScaler()
    scaler.mean_, scaler.scale_ = numpy.array([0.0, 1.0]), numpy.array([0.5, 2.0])
    preprocess.fit(scaler)
    images = torch.tensor([[[[0.0, 1.0]], [[3.0, 5.0]]]])
    assert preprocess(images).tolist() == [[[[0.0, 2.0]], [[1.0, 2.0]]]]  # (x - 0) / 0.5, (x - 1) / 2
    white = torch.full((1, 2, 1, 2), 255, dtype=torch.uint8)
    assert preprocess(white).tolist() == [[[[2.0, 2.0]], [[0.0, 0.0]]]]  # (1 - 0) / 0.5, (1 - 1) / 2


def test_vectors_are_standardised_per_feature_and_the_fit_is_saved() -> None:
    data = numpy.array([[1.0, 10.0], [3.0, 50.0]])
    fitted, loaded = Preprocess((2,)), Preprocess((2,))
    fitted.fit(StandardScaler().fit(data))
    loaded.load_state_dict(fitted.state_dict())
    for preprocess in (fitted, loaded):
        assert preprocess(torch.tensor(data)).tolist() == [[-1.0, -1.0], [1.0, 1.0]]  # means 2 and 30, deviations 1 and 20
