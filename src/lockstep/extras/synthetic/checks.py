"""What the arguments of the datamodules accept."""

from lockstep.config.rules import YES_NO, integer, number, some

_LENGTHS = {name: integer(1) for name in ("length", "val_length", "test_length")}

RULES = {
    "RandomRegression": {
        **_LENGTHS,
        "in_features": integer(1),
        "out_features": integer(1),
        "teacher": YES_NO,
        "noise": number(0),
    },
    "SyntheticImages": {
        **_LENGTHS,
        "num_classes": integer(2),
        "shape": some("three integers of at least 1", integer(1), count=3),
    },
}
