"""What pyproject.toml cannot say: a wheel holds the configs, scripts, templates and train.py too, in lockstep/shipped, and
its version names the commit, for pip does not replace a package by another of the same version.

An editable install needs none of them: the package finds those of the checkout.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("conf", "scripts", "templates")


class BuildWithShipped(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shipped = Path(self.build_lib, "lockstep", "shipped")
            shutil.rmtree(shipped, ignore_errors=True)
            for folder in filter(Path.is_dir, map(Path, FOLDERS)):
                shutil.copytree(folder, shipped / folder, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy("train.py", shipped)


def commit_tag() -> str:
    """The local version label of this checkout's commit, +gabc1234; empty for sources without a history."""
    if not Path(".git").exists():  # a repository further up is another project's
        return ""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return f"+g{done.stdout.strip()}" if done.returncode == 0 else ""


setup(cmdclass={"build_py": BuildWithShipped}, options={"egg_info": {"tag_build": commit_tag()}})
