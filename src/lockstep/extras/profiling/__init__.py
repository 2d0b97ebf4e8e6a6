"""Where the time of a step goes: profilers, the parts of a step, and float32 rounded to TF32."""

FILES = ["docs/speed.md", "conf/profiler", "conf/callbacks/step_time.yaml", "conf/callbacks/tf32.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
