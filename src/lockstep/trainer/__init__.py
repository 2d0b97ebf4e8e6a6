"""What conf/trainer composes, and the one file that touches Lightning's private names."""
