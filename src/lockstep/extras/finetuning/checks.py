"""What the arguments of what trains a part of a model accept."""

from omegaconf import OmegaConf

from lockstep.config.rules import PATTERN, Rule, above, integer


def _is_schedule(value: object) -> bool:
    return OmegaConf.is_dict(value) and all(integer(0).test(epoch) and PATTERN.test(value[epoch]) for epoch in value)  # pyright: ignore


RULES = {
    "Freeze": {"match": PATTERN, "unfreeze": Rule("accepted is {EPOCH: REGULAR EXPRESSION}", _is_schedule).or_null()},
    "lora": {"rank": integer(1), "alpha": above(0), "match": PATTERN, "train": PATTERN.or_null()},
}
