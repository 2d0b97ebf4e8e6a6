"""A copy of a run elsewhere, made while it trains, from which another machine continues."""
