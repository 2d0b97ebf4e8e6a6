"""What the arguments of the net accept."""

from lockstep.config.rules import integer

RULES = {
    "ViT": {
        **dict.fromkeys(("width", "heads"), integer(1)),
        **dict.fromkeys(("mlp_width", "patch"), integer(1).or_null()),
        "depth": integer(1, 1000),  # layers are made one by one, however long that takes
        "registers": integer(0),
    },
}
