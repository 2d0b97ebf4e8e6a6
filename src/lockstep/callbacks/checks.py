"""What the arguments of the guards and callbacks accept."""

from lockstep.config.rules import MODE, PATTERN, SEED, YES_NO, integer, number, one_of

RULES = {
    "ActivationCheckpointing": {"match": PATTERN},
    "BestCheckpoint": {"mode": MODE, "save_top_k": integer(-1)},
    "CounterBasedRandomness": {"seed": SEED},
    "EarlyStopping": {"mode": MODE, "patience": integer(0), "min_delta": number(0)},
    "EMA": {
        "decay": number(0, 1),
        "update_every_n_steps": integer(1),
        "update_starting_at_step": integer(0).or_null(),
    },
    "LastCheckpoint": {
        "every_n_epochs": integer(1).or_null(),
        "every_n_steps": integer(1).or_null(),
        "every_n_minutes": number(0.001).or_null(),
    },
    "NonFinite": {"action": one_of("stop", "skip"), "every_n_steps": integer(1)},
    "Pictures": {"samples": integer(1)},
    "Preemption": {"every_n_steps": integer(1), "deadline": number(1, 10**7).or_null()},
    "Progress": {"refresh_rate": integer(0)},
    "TF32": {"matrices": YES_NO, "convolutions": YES_NO},
    "Watchdog": {"seconds": number(1, 10**7), "seconds_to_first_batch": number(1, 10**7)},
}
