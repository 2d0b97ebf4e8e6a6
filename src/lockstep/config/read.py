"""What was read from the directory of a run or a sweep, which may be a stranger's: what of it is taken for a command line."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from lockstep.config.overrides import override_key, quote, split_flags
from lockstep.config.targets import ALLOW, is_project_path
from lockstep.errors import config_error
from lockstep.places import CONF, project

_OF_THE_COMMAND = (ALLOW, "resume", "begin_from", "overwrite", "run_dir")
# Of Hydra's own settings those that run, import and write nothing. Those of launchers and sweepers are in _SETTINGS.
_OF_HYDRA = r"hydra\.(verbose|mode|sweep\.dir|(job|hydra)_logging\.(root|loggers\.\w+)\.level|sweeper\.max_batch_size)"
# None of these runs a command, imports or connects to anything; what Optuna's sampler and pruner may build is checked.
_SETTINGS = {"gpus", "jobs", "timeout", "retries", "on_failure", "dry_run", "partition", "account", "time", "mem", "gres"}
_SETTINGS |= {"gpus_per_node", "cpus_per_device", "warning", "poll", "detach", "num_cpus", "n_trials", "n_jobs", "seed"}
_SETTINGS |= {"sampler", "pruner"}
_OF_SWEEPS = r"hydra\.(?:launcher|sweeper)\.(\w+)(?:\.\w+)*"
_OPTIONS = r"hydra/(launcher|sweeper|job_logging|hydra_logging)=\w+"
# They make no value that is a group, and so no target, and run nothing of the project's own.
_RESOLVERS = ("oc.env", "oc.select", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "hydra", "now", "run_id")


@dataclass(frozen=True)
class Given:
    """What the user's own command says beside what was read.

    arguments: flags and overrides; what was read may say the same.
    allow: what the user trusts besides: modules, full names, keys of overrides.
    """

    arguments: Sequence[str] = ()
    allow: Sequence[str] = ()

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> "Given":
        """Raises ConfigError for an `allow=` that is no list of names."""
        items = [item for item in split_flags(arguments)[1] if override_key(item) == ALLOW]
        value = _value(items[-1]) if items else None
        names = [] if value is None else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise config_error(ALLOW, items[-1].partition("=")[2], "accepted is a list of names, [my_package] say")
        return cls(arguments, names)

    @property
    def override(self) -> str:
        """Returns the override that marks the command line, which what was read becomes, as a config that was read."""
        return f"++{ALLOW}=[{','.join(map(quote, self.allow))}]"


def check_flags(where: Path, flags: Sequence[str], given: Given) -> None:
    """Raises ConfigError for a flag that names no config of the project's."""
    pairs = list(zip(flags[::2], flags[1::2], strict=False))
    if len(flags) % 2 or any(flag not in ("--config-name", "--config-path", "--config-dir") for flag, _ in pairs):
        raise config_error("directory", where, f"says {' '.join(flags)}; accepted are --config-name, --config-path, --config-dir")
    for flag, value in pairs:
        if value in given.arguments or flag in given.allow:
            continue
        is_name = flag == "--config-name" and re.fullmatch(r"[\w-]+(/[\w-]+)*(\.yaml)?", value) is not None
        if not is_name and (flag == "--config-name" or not _is_own_folder(value, where)):
            accepted = f"{where} says so, and it is not of the project; accepted is the same flag on the command line"
            raise config_error(flag, value, accepted)


def check_overrides(
    where: Path,
    overrides: Sequence[str],
    flags: Sequence[str],
    given: Given,
    objection: Callable[[str, Any], str | None] = lambda *_: None,
) -> None:
    """Raises ConfigError for what a directory may not decide, and the command line does not say too.

    `objection` says of a key and its value why these must not be followed, None if they may be.
    """
    folders = [CONF, project() / "conf", *map(Path, flags)]
    for item in overrides:
        key = override_key(item)
        if item in given.arguments or key in given.allow or _searches_in_the_project(item, where):
            continue
        if (why := next(_objections(item, folders), None) or objection(key, _value(item))) is not None:
            accepted = f"accepted is the same on the command line, or {ALLOW}=[{key}], of a script --allow {key}"
            raise config_error(key, item.partition("=")[2], f"{where} says so, {why}; {accepted}")


def _searches_in_the_project(item: str, where: Path) -> bool:
    folders = _value(item) if override_key(item) == "hydra.searchpath" else None
    return isinstance(folders, list) and all(_is_own_folder(str(one).removeprefix("file://"), where) for one in folders)


def _is_own_folder(name: str, where: Path) -> bool:
    """Lockstep's own, or one of the project, which has not come with what was read."""
    path = Path(name)
    return path.is_absolute() and (path.resolve() == CONF or is_project_path(path.resolve(), where))


def _objections(item: str, folders: Sequence[Path]) -> Iterator[str]:
    key, text = override_key(item), item.partition("=")[2]
    if item.startswith("-") or key in _OF_THE_COMMAND:
        yield "which is for a command to say"
    if re.search(r"(^|@)hydra([./@]|$)", key) and not _is_harmless(key, text):  # by a group, too, that is composed into it
        yield "and Hydra's own settings can run code"
    for name in re.findall(r"\$\{\s*([^{}:\s]*)\s*:", text):
        if name not in _RESOLVERS:
            yield f"and the resolver {name} may run code"
    if re.search(r"\$\{[^}]*\$\{", text):
        yield "with one interpolation within another"
    is_group = "/" in key or any((folder / key.partition("@")[0]).is_dir() for folder in folders)
    if is_group and ".." in text:
        yield "which is no file of the project's"


def _is_harmless(key: str, text: str) -> bool:
    if (setting := re.fullmatch(_OF_SWEEPS, key)) is not None and setting[1] in _SETTINGS:
        return True
    return re.fullmatch(_OF_HYDRA, key) is not None or re.fullmatch(_OPTIONS, f"{key}={text}") is not None


def _value(item: str) -> Any:
    """Returns an override's value as Hydra reads it; a sweep's choices, and what can't be read, as text."""
    try:
        parsed = OverridesParser.create().parse_override(item)
        return item.partition("=")[2] if parsed.is_sweep_override() or parsed.is_delete() else parsed.value()
    except HydraException:
        return item.partition("=")[2]
