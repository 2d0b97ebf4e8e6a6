"""A cluster of Ray's with two nodes of one CPU each, on this machine.

Prints its address; then `remove` and `add` on standard input take the second node away, as a machine that dies, and add another;
each is answered by a line.
"""

import importlib
import sys

if __name__ == "__main__":
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    utils = importlib.import_module("ray.cluster_utils")  # a checkout without Ray is checked too
    cluster = utils.Cluster(initialize_head=True, head_node_args=small)
    node = cluster.add_node(**small)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "remove":
            cluster.remove_node(node, allow_graceful=False)
        else:
            node = cluster.add_node(**small)
        print(line.strip(), flush=True)
    cluster.shutdown()
