"""A copy of a run's directory elsewhere, made while it trains, from which another machine continues."""
