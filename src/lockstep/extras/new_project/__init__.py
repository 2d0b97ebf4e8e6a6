"""A project of a user's own, a dozen files whose engine is this package."""
