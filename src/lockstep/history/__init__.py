"""The runs under a folder: listed, searched, compared, and the code of each brought back. Their directories are the database."""
