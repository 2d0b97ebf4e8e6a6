"""Hydra's seam for a search: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

import importlib.util
from typing import Any

from hydra_plugins.lockstep_sweeper import JobSweeper
from lockstep.errors import config_error


class OptunaSweeper(JobSweeper):
    """Trials that Optuna asks for, as jobs; see lockstep.extras.search.search."""

    def setup(self, **context: Any) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise config_error("hydra/sweeper", "optuna", "the library `optuna` is not installed: pip install 'lockstep[search]'")
        super().setup(**context)

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.extras.search.search import Search, Settings

        Search(self.config, self.loader, Settings.from_config(self.settings), self.launcher).run(arguments)
