"""What the arguments of the nets accept."""

from lockstep.config.rules import integer, number, some

RULES = {
    "CNN": {"width": integer(1)},
    "MLP": {"hidden": some("integers of at least 1", integer(1)), "dropout": number(0, 1)},
}
