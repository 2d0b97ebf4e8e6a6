"""torchrun: ranks that its agents have started, on one machine or on several whose nodes come and go."""

FILES = ["scripts/torchrun_multinode.sh"]
FORMER_NAMES = {
    "lockstep.launchers.cluster.Torchrun": "lockstep.extras.torchrun.cluster.Torchrun"
}  # in a project's own launchers.yaml
