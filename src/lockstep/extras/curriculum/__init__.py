"""Easy samples first, and by and by the others (Bengio et al. 2009, doi:10.1145/1553374.1553380)."""
