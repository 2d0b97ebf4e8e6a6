"""The runs under a folder: listed, searched, compared. Their directories are the database."""

FILES = ["docs/runs.md", "scripts/runs.py"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
