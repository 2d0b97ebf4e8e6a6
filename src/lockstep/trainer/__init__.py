"""Parts that conf/trainer composes, and Lightning's private names."""
