"""torchrun: ranks that its agents have started, on one machine or on several whose nodes come and go."""

FILES = ["scripts/torchrun_multinode.sh"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
FORMER_NAMES = {
    "lockstep.launchers.cluster.Torchrun": "lockstep.extras.torchrun.cluster.Torchrun"
}  # in a project's own launchers.yaml
