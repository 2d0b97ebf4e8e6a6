"""Callbacks that only look, of which none ends a run: rates, pictures, step times, the noise scale."""
