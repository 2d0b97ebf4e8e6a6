"""Files that whoever comes first writes, and others wait for: decoded images, the tokens of texts."""
