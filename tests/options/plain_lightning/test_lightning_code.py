"""LightningModules that know nothing of this package, on one, two and three processes: benchmarks/lightning_code.py, in part."""

import pytest
from lightning_code import QUANTITIES, TOLERANCE, compared

pytestmark = pytest.mark.slow

SAID = {
    "segmentation, BatchNorm": "",
    "GAN, two optimizers by hand": "",
    "loaders of its own": "",
    "several validation loaders": "",
    "stream": "",
    "torchmetrics": "",
    "GAN, noise by lockstep.noise": "",
    "mixup": "",
    "variational autoencoder": "",
    "diffusion": "",
    "dropout": "",
    "augmentation behind the transfer": "",
    "random transforms": "",
    "GAN, noise drawn in the step": "a training step draws random numbers",
    "negatives of all processes": "self.all_gather takes unequal numbers of samples from processes",
    "teacher with a centre": "a validation step draws random numbers, as torch's dropout does, that differ between processes; "
    "use lockstep.nets.Dropout or lockstep.noise, which draw the same on any number of processes buffers differ between "
    "processes after a step, and process 0's are kept (centre)",
    "a metric by hand": "val_median, logged in on_validation_epoch_end, differs between processes",
}


def test_what_is_equal_is_so_to_rounding_and_what_is_not_is_said() -> None:
    rows = {kind: row for (kind, _), row in compared(SAID, {"here": "trained"}).items()}
    unequal = {kind: {q: row[q] for q in QUANTITIES if row[q] > TOLERANCE} for kind, row in rows.items()}
    assert {kind for kind, differences in unequal.items() if differences} == {kind for kind, line in SAID.items() if line}
    assert unequal["a metric by hand"].keys() == {"metrics"}
    for kind, line in SAID.items():
        assert " ".join(rows[kind]["said"]).startswith(line), kind
        assert bool(rows[kind]["said"]) == bool(line), kind
