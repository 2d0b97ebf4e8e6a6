"""What the arguments of the callback accept."""

from lockstep.config.rules import integer, number

RULES = {
    "EMA": {
        "decay": number(0, 1),
        "update_every_n_steps": integer(1),
        "update_starting_at_step": integer(0).or_null(),
    },
}
