"""Hydra's seam for where configs are: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lockstep.places import CONF, project


class LockstepSearchPath(SearchPathPlugin):
    """Lockstep's configs stand behind the project's, of which those of the same name win, whichever of both a program names."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folders = {_folder(element.path) for element in search_path.get_path()}
        if CONF not in folders:
            search_path.append("lockstep", f"file://{CONF}")
        elif (own := project() / "conf") not in folders:
            search_path.prepend("project", f"file://{own}", SearchPathQuery(provider="main"))


def _folder(path: str) -> Path:
    return Path(path.removeprefix("file://")).resolve()
