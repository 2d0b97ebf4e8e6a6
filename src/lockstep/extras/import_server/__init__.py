"""One import of torch and Lightning for all ranks and jobs, which are forked from a server that has done it."""
