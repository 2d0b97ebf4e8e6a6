"""Where the time of a step goes: profilers, the parts of a step, float32 rounded to TF32, and denormal numbers."""
