"""Files that the first process writes while others wait for them: decoded images, the tokens of texts."""
