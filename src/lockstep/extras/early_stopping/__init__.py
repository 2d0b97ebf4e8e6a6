"""Early stopping, which a resumed run knows to have happened."""
