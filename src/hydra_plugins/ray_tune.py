"""Hydra's seam for a search by Ray Tune: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

import importlib.util
from typing import Any

from hydra_plugins.lockstep_sweeper import JobSweeper
from lockstep.errors import config_error


class RayTuneSweeper(JobSweeper):
    """Trials that Ray Tune asks for, as jobs; see lockstep.extras.ray_cluster.tune."""

    def setup(self, **context: Any) -> None:
        for name in ("ray", "pandas", "optuna"):  # Ray Tune needs pandas, and the space of a search Optuna's distributions
            if importlib.util.find_spec(name) is None:
                needs = f"the library `{name}` is not installed: pip install 'lockstep[ray]'"
                raise config_error("hydra/sweeper", "ray_tune", needs)
        super().setup(**context)

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.extras.ray_cluster.tune import Settings, TuneSweep

        TuneSweep(self.config, self.loader, Settings.from_config(self.settings), self.launcher).run(arguments)
