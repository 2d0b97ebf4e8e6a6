"""Where the time of a step goes: profilers, and the parts of a step."""

FILES = ["docs/speed.md", "conf/profiler", "conf/callbacks/step_time.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
