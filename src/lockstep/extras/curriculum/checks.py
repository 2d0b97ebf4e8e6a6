"""What the arguments of a curriculum accept."""

from lockstep.config.rules import above, number

RULES = {
    "Curriculum": {"epochs": above(0), "pacing.power": above(0), "pacing.start": number(0.001, 1)},
}
