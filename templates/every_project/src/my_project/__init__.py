"""What is this project's own: a net or a LightningModule, and data."""
