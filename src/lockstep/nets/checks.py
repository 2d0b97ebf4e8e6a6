"""What the arguments of the nets accept."""

from lockstep.config.rules import integer, number, some

DEPTH = integer(1, 1000)  # layers are made one by one, however long that takes

RULES = {
    "CNN": {"width": integer(1)},
    "MLP": {"hidden": some("integers of at least 1", integer(1)), "dropout": number(0, 1)},
    "resnet": {"depth": DEPTH},
}
