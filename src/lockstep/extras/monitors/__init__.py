"""Callbacks that only look, of which none ends a run: rates, pictures, profilers, the noise scale."""
