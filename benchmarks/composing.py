"""Milliseconds of processor for the config of one more job of a sweep: composed by Hydra, and by lockstep.sweeps.composition.

python benchmarks/composing.py [overrides of a job]
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF
from lockstep.sweeps.composition import JobConfigs

TIMES = 10
JOB = ["trainer=cpu", "debug=fast", "seed=1", "model.optimizer.lr=1e-3"]


def milliseconds(function: Callable[[], Any]) -> float:
    """Of one call, after a first that is not counted."""
    function()
    began = time.process_time()
    for _ in range(TIMES):
        function()
    return (time.process_time() - began) / TIMES * 1000


def main() -> None:
    register_resolvers()
    job = sys.argv[1:] or JOB
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        engine: Any = GlobalHydra.instance().hydra
        config = engine.compose_config("train", [], RunMode.MULTIRUN, with_log_configuration=False)
        configs = JobConfigs(config, engine.config_loader)
        print(f"Hydra {milliseconds(lambda: engine.config_loader.load_sweep_config(config, job)):.0f} ms")
        print(f"lockstep.sweeps.composition {milliseconds(lambda: configs.compose(job)):.0f} ms")


if __name__ == "__main__":
    main()
