"""Parts that conf/trainer composes, and the two files that touch Lightning's private names."""
