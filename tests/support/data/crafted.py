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
    "a process": {"net": {"_target_": "subprocess.Popen", "args": RUN, "shell": True}},
    "deletion": {"net": {"_target_": "shutil.rmtree", "path": "."}},
    "a script": {"net": {"_target_": "runpy.run_path", "path_name": "evil.py"}},
    "text as code": {"net": {"_target_": "builtins.exec", "_args_": ["open('ran', 'w')"]}},
    "a pickle": {"net": {"_target_": "torch.load", "f": "evil.pt", "weights_only": False}},
    "code from a hub": {"net": {"_target_": "torch.hub.load", "repo_or_dir": ".", "model": "m", "source": "local"}},
    "a module of its own": {"net": {"_target_": "evil.run"}},
    "the task": {"_target_": "os.system", "command": RUN},
    "the optimizer, called later": {"optimizer": {"_target_": "os.system", "_partial_": True}},
    "the schedule, called later": {"lr_scheduler": {"_target_": "evil.run", "_partial_": True}},
    "within a list": {"net": {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "os.system", "command": RUN}]}},
    "within a group": {"net.deep": {"deeper": [{"_target_": "evil.run"}]}},
    "what torch.nn imports": {"net": {"_target_": "torch.nn.functional.importlib.import_module", "name": "evil"}},
    "what our models import": {"net": {"_target_": "lockstep.models.task.torch.hub.load", "repo_or_dir": "."}},
    "our own builder": {"net": {"_target_": "lockstep.models.from_checkpoint.load_model", "checkpoint": "other.ckpt"}},
    "our own files": {"net": {"_target_": "lockstep.atomic_files.replace_text", "path": "ran", "text": ""}},
    "Hydra": {"net": {"_target_": "hydra.utils.instantiate", "config": {"_target_": "evil.run"}}},
    "a method": {"net": {"_target_": "torch.nn.Module.register_forward_hook", "self": None, "hook": None}},
    "a function of torch.nn": {"net": {"_target_": "torch.nn.init.normal_", "tensor": None}},
    "a function of torchvision": {"net": {"_target_": "torchvision.models.feature_extraction.create_feature_extractor"}},
    "a private name": {"net": {"_target_": "torchvision.models._api.get_weight", "name": "ResNet18_Weights.DEFAULT"}},
    "a function that builds": {
        "_target_": "lockstep.models.from_config.build_model",
        "trust": None,
        "model_config": {"spec": None, "model": [["_target_", "torch.utils.collect_env.run"], ["command", RUN]]},
    },
    "within a tuple": {"net.deep": ({"_target_": "torch.utils.collect_env.run", "command": RUN},)},
    "within what is called later": {
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": {"_target_": "evil.run"}},
    },
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
    "a class of ours that asks for one": {
        "net": {
            "_target_": "lockstep.extras.import_server.servers.Request",
            "arguments": ["evil.py"],
            "cwd": ".",
            "environment": {},
            "lifeline": "",
            "cores": [],
        }
    },
    "no text": {"net": {"_target_": ["os.system"], "command": RUN}},
    "an empty part": {"net": {"_target_": "torch.nn..Linear"}},
}

# What config nodes in a run's directory name, by key.
RUN_TARGETS: dict[str, tuple[str, Any]] = {
    "a function of torch": ("model.net", {"_target_": "torch.utils.collect_env.run", "command": RUN}),
    "a shell": ("callbacks.own", {"_target_": "os.system", "command": RUN}),
    "a class of torch that starts a process": (
        "callbacks.own",
        {"_target_": "torch.distributed.elastic.multiprocessing.SubprocessHandler", "entrypoint": "touch", "args": ["ran"]},
    ),
    "a program of the project": ("callbacks.own", {"_target_": "tests.commands.python", "_args_": ["-c", "open('ran', 'w')"]}),
    "the program itself": ("callbacks.own", {"_target_": "train.main"}),
    "a module that came with it": ("datamodule", {"_target_": "logs.stranger.evil.Data", "batch_size": 32}),
    "a module of its neighbour": ("datamodule", {"_target_": "logs.evil.Data", "batch_size": 32}),
    "deep in a list": ("callbacks.best_checkpoint.deep", [[{"_target_": "evil.run"}]]),
    "Lightning's command line": ("callbacks.own", {"_target_": "lightning.pytorch.cli.LightningCLI"}),
    "a function of ours": ("callbacks.own", {"_target_": "lockstep.launchers.supervisor.supervise", "command": ["touch", "ran"]}),
}
TRAIN = ["--config-name", "train", "--config-path", str(CONF)]
# (flags, overrides) of a run.json, or of a sweep's calls; {run} is where they are.
COMMAND_LINES: dict[str, tuple[list[str], list[str]]] = {
    "a pickle to run again": (["--experimental-rerun", "{run}/evil.pickle"], []),
    "a flag that is alone": ([*TRAIN, "--multirun"], []),
    "a package as configs": (["--config-name", "train", "--config-path", "pkg://evil"], []),
    "configs that came with it": ([*TRAIN, "--config-dir", "{run}/conf"], []),
    "a main config that came with it": (["--config-name", "../{run}/evil", "--config-path", str(CONF)], []),
    "a flag among overrides": (TRAIN, ["--experimental-rerun={run}/evil.pickle"]),
    "a package to search": (TRAIN, ["hydra.searchpath=[pkg://evil]"]),
    "a folder to search that came with it": (TRAIN, ["hydra.searchpath=[file://{run}/conf]"]),
    "a callback of Hydra's": (TRAIN, ["+hydra.callbacks.own={_target_: evil.run}"]),
    "a handler of logs": (TRAIN, ["hydra.job_logging.handlers.file={(): evil.run}"]),
    "a log where Python looks": (TRAIN, ["hydra.job_logging.handlers.file.filename=evil.py"]),
    "Hydra's own log": (TRAIN, ["+hydra.hydra_logging.formatters.own={(): evil.run}"]),
    "the environment": (TRAIN, ["+hydra.job.env_set.PYTHONPATH={run}"]),
    "a group put into Hydra's": (TRAIN, ["+callbacks@hydra.callbacks=default"]),
    "all of Hydra's": (TRAIN, ["++hydra={callbacks: {own: {_target_: evil.run}}}"]),
    "the launcher": (TRAIN, ["hydra.launcher._target_=evil.run"]),
    "lines of shell": (TRAIN, ["hydra/launcher=slurm", "hydra.launcher.setup=[touch ran]"]),
    "flags of sbatch": (TRAIN, ["hydra/launcher=slurm", "hydra.launcher.sbatch=[--wrap=touch ran]"]),
    "a launcher that came with it": (TRAIN, ["hydra/launcher={run}/evil"]),
    "the sweeper": (TRAIN, ["hydra.sweeper._target_=evil.run"]),
    "an option that came with it": (TRAIN, ["+experiment=../../{run}/evil"]),
    "an option that came with it, without a word of configs": ([], ["+experiment=../../{run}/evil"]),
    "options that came with it": (TRAIN, ["+experiment=[toy_regression,../../{run}/evil]"]),
    "a resolver of the project's": (TRAIN, ['name=${{eval:\'__import__("os").system("touch ran")\'}}']),
    "a group made of text": (TRAIN, ["model.net=${{oc.decode:'{{_target_: evil.run}}'}}"]),
    "a group made of a group": (TRAIN, ["model.net=${{oc.create:{{_target_: evil.run}}}}"]),
    "a resolver within another": (TRAIN, ["model.net=${{${{name}}:x}}"]),
    "a copy where Python looks": (TRAIN, ["mirror=file:///usr/lib/python3/dist-packages"]),
    "a copy that is named elsewhere": (TRAIN, ["mirror=${{name}}"]),
    "another directory": (TRAIN, ["run_dir=/"]),
    "its own trust": (TRAIN, ["++allow=[evil]"]),
}


def command_line(how: str, run: Path) -> tuple[list[str], list[str]]:
    flags, overrides = COMMAND_LINES[how]
    return [item.replace("{run}", str(run)) for item in flags], [
        item.replace("{run}", str(run)).replace("{{", "{").replace("}}", "}") for item in overrides
    ]
