"""Many runs: which jobs a sweep consists of, where they run, what is on disk, and what came of them."""
