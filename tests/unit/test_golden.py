"""The first losses of every shipped model are those that were committed."""

import json
from pathlib import Path

import pytest
from golden_losses import CONFIGS, FOLDER, losses

from lockstep.places import CONF


@pytest.mark.parametrize("model", CONFIGS)
def test_the_first_losses_are_the_golden_ones(model: str, tmp_path: Path) -> None:
    """Other processors round otherwise, by 1e-14 or so; anything else is another training."""
    golden = json.loads((FOLDER / f"{model}.json").read_text())
    assert golden["config"] == list(CONFIGS[model])
    assert losses(model, tmp_path) == pytest.approx(golden["losses"], rel=1e-9)


def test_every_whole_model_has_a_golden_file() -> None:
    """A file in conf/model that names a net is a whole model; those without are what they share."""
    whole = {path.stem for path in (CONF / "model").glob("*.yaml") if "net: ???" not in path.read_text()}
    assert whole - {"vit_b_16"} <= {*CONFIGS}  # which has 86 million parameters and is torchvision's own
