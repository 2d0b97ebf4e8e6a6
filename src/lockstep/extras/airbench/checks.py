"""What the arguments of the net accept."""

from lockstep.config.rules import above, integer, number

RULES = {
    "Airbench": {
        "width": integer(1),
        "kernel_size": integer(1),
        "batchnorm_momentum": number(0, 1),
        "scaling_factor": above(0),
    },
}
