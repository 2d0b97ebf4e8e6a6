"""Callbacks that only look, of which none ends a run: rates, pictures, step times, the noise scale."""

FILES = ["benchmarks/competitors/steady_callback.py"]
