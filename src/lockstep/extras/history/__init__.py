"""The runs under a folder: listed, searched, compared, and the code of each brought back. Their directories are the database."""

FILES = [
    "docs/runs.md",
    "docs/notebook.ipynb",
    "scripts/runs.py",
    "scripts/reproduce.py",
    "conf/events/code.yaml",
    "conf/events/last.yaml",
]
