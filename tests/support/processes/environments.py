"""The environment that ranks find, and a check of whatever has started them."""

from lockstep.launchers.environment import PARENT_PID

PARENT = {PARENT_PID: "5", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"GROUP_WORLD_SIZE": "1"}
