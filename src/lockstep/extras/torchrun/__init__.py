"""torchrun: ranks that its agents have started, on one machine or on several whose nodes come and go."""

FORMER_NAMES = {
    "lockstep.launchers.cluster.Torchrun": "lockstep.extras.torchrun.cluster.Torchrun"
}  # in a project's own launchers.yaml
