"""What keeps several processes from giving the result of one, said at the start of a run and kept in its record."""
