"""What the arguments of the data accept."""

from omegaconf import OmegaConf

from lockstep.config.rules import TEXT, Rule, integer
from lockstep.extras.images.checks import check_folder

RULES = {
    "HFDataset": {
        "inputs": Rule(
            "accepted is a list of names of columns, or one name",
            lambda v: TEXT.test(v) or (OmegaConf.is_list(v) and len(v) > 0 and all(map(TEXT.test, v))),
        ),
        "target": TEXT,
        "size": integer(1),
    },
}
CHECKS = {"HFDataset": check_folder}
