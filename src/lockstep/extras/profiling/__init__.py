"""Where the time of a step goes: profilers, the parts of a step, float32 rounded to TF32, and denormal numbers."""

FILES = [
    "docs/speed.md",
    "conf/profiler",
    "conf/callbacks/step_time.yaml",
    "conf/callbacks/tf32.yaml",
    "conf/callbacks/flush_denormal.yaml",
]
NEEDS = ["monitors"]
