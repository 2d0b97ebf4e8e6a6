"""What the mirror does when something happens to a run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from lockstep.config.checks import check_types
from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.runs.directory import absolute
from lockstep.runs.events import RunEvents

if TYPE_CHECKING:  # else where there is a mirror
    from lockstep.extras.mirror.mirror import Mirror

_URL = re.compile(r"[a-z][a-z0-9+.-]+://\S+")


def is_url(text: object) -> bool:
    return isinstance(text, str) and _URL.fullmatch(text) is not None


class MirrorEvents(RunEvents):
    """`mirror=URL` copies a run while it trains; `resume=URL`, or `resume=DIRECTORY mirror=URL`, goes on from the copy."""

    settings = ("mirror", "mirror_wait")

    def __init__(self) -> None:
        self._mirror: Mirror | None = None

    def locate(self, wanted: str, values: Mapping[str, str]) -> Path | None:
        if not is_url(wanted):
            return None
        from lockstep.extras.mirror.fetch import directory_for

        return absolute(values["hydra.run.dir"]) if "hydra.run.dir" in values else directory_for(wanted)

    def fetch(self, wanted: str, values: Mapping[str, str], directory: Path) -> None:
        from lockstep.extras.mirror.fetch import bring
        from lockstep.extras.mirror.mirror import copy_url

        if is_url(wanted):
            bring(wanted, directory)
        elif not directory.exists() and is_url(values.get("mirror")):
            bring(copy_url(values["mirror"], directory), directory)

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_types(cfg, {"mirror": str | None, "mirror_wait": float})
        if cfg.mirror is not None and not is_url(cfg.mirror):
            raise config_error("mirror", cfg.mirror, "is not a URL; use one that fsspec knows, s3://BUCKET/PREFIX say")

    def claim(self, cfg: DictConfig, directory: Path, run_id: str, is_new: bool) -> None:
        if cfg.mirror is not None:
            from lockstep.extras.mirror.mirror import check_mirror

            check_mirror(cfg.mirror, directory, run_id, is_new)

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        if cfg.mirror is not None:
            from lockstep.extras.mirror.mirror import Mirror, copy_url

            self._mirror = Mirror(copy_url(cfg.mirror, directory), directory, cfg.mirror_wait)
            self._mirror.start()

    def end(self, code: int) -> None:
        if self._mirror is not None:
            self._mirror.finish()
