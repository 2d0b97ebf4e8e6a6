"""Checkpoints that a stranger might send. Each is made to leave a file, `ran`, or to have one left later."""

import copy
from typing import Any

SPEC = {"input_shape": [1, 8, 8], "num_outputs": 10, "class_names": None}
MODEL: dict[str, Any] = {
    "_target_": "lockstep.models.Classifier",
    "net": {"_target_": "lockstep.nets.MLP", "hidden": [4]},
    "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3},
    "lr_scheduler": {"_target_": "lockstep.models.schedules.constant", "_partial_": True},
    "metrics": ["loss"],
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """A model config with values replaced, {"net.hidden": [8]} say."""
    model = copy.deepcopy(MODEL)
    for key, value in changes.items():
        *parents, name = key.split(".")
        node = model
        for parent in parents:
            node = node[parent]
        node[name] = value
    return {"model": model, "spec": SPEC}


RUN = "touch ran"
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "a shell": {"net": {"_target_": "os.system", "command": RUN}},
    "text as code": {"net": {"_target_": "builtins.exec", "_args_": ["open('ran', 'w')"]}},
    "a pickle": {"net": {"_target_": "torch.load", "f": "evil.pt", "weights_only": False}},
    "a module of its own": {"net": {"_target_": "evil.run"}},
    "the optimizer, called later": {"optimizer": {"_target_": "os.system", "_partial_": True}},
    "within a list": {"net": {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "os.system", "command": RUN}]}},
    "our own files": {"net": {"_target_": "lockstep.atomic_files.replace_text", "path": "ran", "text": ""}},
    "a class that starts a process": {
        "net": {
            "_target_": "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler",
            "entrypoint": "touch",
            "args": ["ran"],
            "env": {},
            "stdout": None,
            "stderr": None,
            "local_rank_id": 0,
        }
    },
}
