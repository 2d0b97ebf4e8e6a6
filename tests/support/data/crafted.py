"""What a stranger might send: checkpoints, and what the directories of runs and sweeps say. Each is made to leave a file,
`ran`, or to have one left later."""

import copy
from pathlib import Path
from typing import Any

from lockstep.runs.composition import CONF

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

# What config nodes in a run's directory name, by key.
RUN_TARGETS: dict[str, tuple[str, Any]] = {
    "a function of torch": ("model.net", {"_target_": "torch.utils.collect_env.run", "command": RUN}),
    "a shell": ("callbacks.own", {"_target_": "os.system", "command": RUN}),
    "a module that came with it": ("datamodule", {"_target_": "logs.stranger.evil.Data", "batch_size": 32}),
    "deep in a list": ("callbacks.best_checkpoint.deep", [[{"_target_": "evil.run"}]]),
}
TRAIN = ["--config-name", "train", "--config-path", str(CONF)]
# (flags, overrides) of a run.json, or of a sweep's calls; {run} is where they are.
COMMAND_LINES: dict[str, tuple[list[str], list[str]]] = {
    "a pickle to run again": (["--experimental-rerun", "{run}/evil.pickle"], []),
    "configs that came with it": ([*TRAIN, "--config-dir", "{run}/conf"], []),
    "a callback of Hydra's": (TRAIN, ["+hydra.callbacks.own={_target_: evil.run}"]),
    "the launcher": (TRAIN, ["hydra.launcher._target_=evil.run"]),
    "a resolver of the project's": (TRAIN, ['name=${{eval:\'__import__("os").system("touch ran")\'}}']),
    "its own trust": (TRAIN, ["++allow=[evil]"]),
}


def command_line(how: str, run: Path) -> tuple[list[str], list[str]]:
    flags, overrides = COMMAND_LINES[how]
    return [item.replace("{run}", str(run)) for item in flags], [
        item.replace("{run}", str(run)).replace("{{", "{").replace("}}", "}") for item in overrides
    ]
