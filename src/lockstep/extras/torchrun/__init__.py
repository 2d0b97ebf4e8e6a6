"""torchrun: ranks that its agents have started, on one machine or on several whose nodes come and go."""
