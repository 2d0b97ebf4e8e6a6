"""What the arguments of the guards and callbacks accept."""

from lockstep.config.rules import MODE, SEED, integer, number

RULES = {
    "BestCheckpoint": {"mode": MODE, "save_top_k": integer(-1)},
    "CounterBasedRandomness": {"seed": SEED},
    "LastCheckpoint": {
        "every_n_epochs": integer(1).or_null(),
        "every_n_steps": integer(1).or_null(),
        "every_n_minutes": number(0.001).or_null(),
    },
    "Preemption": {"every_n_steps": integer(1).or_null(), "deadline": number(1, 10**7).or_null()},
    "Watchdog": {"seconds": number(1, 10**7), "seconds_to_first_batch": number(1, 10**7)},
}
