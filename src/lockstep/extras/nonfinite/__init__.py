"""A guard that ends a run, or leaves a step out, whose loss is NaN or infinite."""
