"""Memory that a step on CPUs has freed is kept for the next one."""

FILES = ["conf/events/kept_memory.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
