"""torchrun on one node of a job: it starts this node's processes, and ends with the worker that has started it.

python -m lockstep.extras.ray_cluster.agent [options of torchrun] train.py [overrides]
"""

from torch.distributed.run import main

from lockstep.launchers.rank import attach_to_parent

if __name__ == "__main__":
    attach_to_parent()
    main()
