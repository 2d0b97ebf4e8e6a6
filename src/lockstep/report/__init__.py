"""The report of a sweep: speed-up, accuracy over GPU counts and rates, with pictures and intervals."""
