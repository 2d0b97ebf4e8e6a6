"""A project of a user's own, a dozen files whose engine is this package."""

FILES = ["templates", "scripts/new.py", "docs/your-project.md"]
