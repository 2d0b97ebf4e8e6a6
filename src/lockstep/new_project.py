"""The files of a new project, made from templates/, and the changes that a later version of them brings.

templates/every_project and templates/MODEL together are a project that trains, under the name my_project.
"""

import hashlib
import json
import sys
from importlib import metadata
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from lockstep.atomic_files import read_json, replace_text, write_json
from lockstep.errors import config_error
from lockstep.places import HOME

TEMPLATES = HOME / "templates"
EVERY = "every_project"  # files of all projects
ENGINE = __name__.partition(".")[0]
RECORD = f".{ENGINE}.json"  # in the project: its name and model, and a hash of each file
_NAME, _REQUIREMENT = "my_project", "ENGINE"  # in the templates
_RESERVED = ("train", "conf", "src", "scripts", "tests", "docs", "benchmarks", "logs")


def create(path: Path, model: str) -> None:
    """Write a project into a folder that is empty or not there yet. Raises ConfigError for one that is neither."""
    name = path.absolute().name.replace("-", "_")
    if not _can_be_a_package(name):
        accepted = "use a lower-case name of letters, digits, - and _ that begins with a letter and that no module has"
        raise config_error("PATH", path, accepted)
    if (module := find_spec(name)) is not None:
        raise config_error("PATH", path, f"there is a module {name}, {module.origin}; use another name")
    if path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None):
        raise config_error("PATH", path, "is there already; use a new folder, or an empty one")
    files = _render(name, model)
    _write(path, files, [*files])
    (path / "logs").mkdir()
    _record(path, name, model, files)


def update(path: Path) -> tuple[list[str], list[str]]:
    """Write the project's files as this version has them. Return the files that were written, and those that were kept because
    the user has changed or deleted them."""
    record = read_json(path / RECORD) or {}
    name, model, hashes = record.get("name"), str(record.get("model")), record.get("files")
    if not isinstance(name, str) or not _can_be_a_package(name) or not isinstance(hashes, dict):
        raise config_error("PATH", path, f"has no {RECORD}; use a project that `{ENGINE} new` has written")
    files = _render(name, model)
    new = [file for file, text in files.items() if _hash(text) != hashes.get(file)]
    kept = [file for file in new if _hash_on_disk(path / file) not in (hashes.get(file), _hash(files[file]))]
    written = [file for file in new if file not in kept]
    _write(path, files, written)
    _record(path, name, model, files)
    return written, kept


def engine() -> str:
    """Return this package as a requirement: the place that it was installed from (PEP 610), or else its version."""
    try:
        installed = metadata.distribution(ENGINE)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return f"{ENGINE} @ {HOME.as_uri()}"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if "url" not in origin:
        return f"{ENGINE}=={installed.version}"
    repository = origin.get("vcs_info")
    url = f"{repository['vcs']}+{origin['url']}@{repository['commit_id']}" if repository else origin["url"]
    return f"{ENGINE} @ {url}"


def _can_be_a_package(name: str) -> bool:
    is_taken = name in (*_RESERVED, ENGINE, *sys.stdlib_module_names)
    return name.isidentifier() and name.islower() and not iskeyword(name) and not is_taken


def _render(name: str, model: str) -> dict[str, str]:
    """Return the text of each file by its path in the project."""
    models = sorted(folder.name for folder in TEMPLATES.iterdir() if folder.name != EVERY)
    if model not in models:
        raise config_error("--model", model, f"use {', '.join(models)}")
    requirement, files = engine(), {}
    for folder in (TEMPLATES / EVERY, TEMPLATES / model):
        for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            path = str(file.relative_to(folder)).replace(_NAME, name)
            files[path] = file.read_text().replace(_NAME, name).replace(_REQUIREMENT, requirement)
    return files


def _write(path: Path, files: dict[str, str], wanted: list[str]) -> None:
    for file in wanted:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        replace_text(path / file, files[file])


def _record(path: Path, name: str, model: str, files: dict[str, str]) -> None:
    hashes = {file: _hash(text) for file, text in files.items()}
    write_json(path / RECORD, {"name": name, "model": model, "files": hashes})


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_on_disk(file: Path) -> str | None:
    return _hash(file.read_text()) if file.is_file() else None
