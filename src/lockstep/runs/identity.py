"""What a run is: its id, which its checkpoints carry, and the command line that composes it."""

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lockstep.atomic_files import read_regular, write_json
from lockstep.config.checkpoint_file import RUN_FILE as FILE
from lockstep.config.overrides import keep_last, override_key
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.command_line import CommandLine

# Keys that say how one command starts, not what the run is.
START_KEYS = ("resume", "begin_from", "overwrite", "hydra.run.dir")

_CHANGES_THE_WORLD = {"trainer", "trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches"}
_SAYS_THE_BATCH = {"datamodule", "datamodule.batch_size", "datamodule.global_batch_size"}


@dataclass(frozen=True)
class Identity:
    """run.json: the first file of a run, replaced when a resumption changes something. A checksum seals it: what a run is
    must not be guessed from half a file.

    flags: of Hydra's command line, as they name the config.
    overrides: of the first start and of all resumptions since.
    global_batch_size: in samples; None where the datamodule has no such key.
    forked_from: of a run that has begun from another one's checkpoint: that run's id, the step, the checkpoint, and the keys that
        were changed.
    """

    id: str
    flags: list[str]
    overrides: list[str]
    global_batch_size: int | None
    forked_from: dict[str, Any] | None = None

    @classmethod
    def new(cls, command: CommandLine, global_batch_size: int | None, start_keys: Sequence[str] = ()) -> Self:
        left_out = {*START_KEYS, *start_keys}
        overrides = [item for item in (*command.overrides, *command.hydra_overrides) if override_key(item) not in left_out]
        return cls(uuid.uuid4().hex, list(command.flags), overrides, global_batch_size)

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """None where there is no such file. Raises ConfigError for one that is damaged."""
        try:
            content = json.loads(read_regular(run_dir / FILE))
            seal = content.pop("sha256")
            if seal == _seal(content):
                return cls(**content)
            reason = "it is not as it was written"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            reason = " ".join(str(error).split())
        raise config_error("resume", run_dir, f"{FILE} is damaged ({reason}); {how_else(run_dir)}")

    def write(self, run_dir: Path) -> None:
        content = asdict(self)
        write_json(run_dir / FILE, content | {"sha256": _seal(content)})

    def with_changes(self, new: Sequence[str]) -> list[str]:
        """The run's overrides and those that are new, of which the last of each key counts. The global batch stays, whatever the
        number of processes."""
        known = list(self.overrides)
        keys = {override_key(item) for item in new if item not in known}
        if self.global_batch_size is not None and keys & _CHANGES_THE_WORLD and not keys & _SAYS_THE_BATCH:
            known.append(f"datamodule.global_batch_size={self.global_batch_size}")
        return keep_last([*known, *new])


def read_run_id(run_dir: Path) -> str | None:
    """Returns the id that checkpoints of the run in a directory carry; None where Lockstep has started no run there."""
    identity = Identity.read(run_dir)
    return None if identity is None else identity.id


def is_resumable(run_dir: Path) -> bool:
    """Is it known what the run in a directory is."""
    try:
        return Identity.read(run_dir) is not None
    except ConfigError:
        return False


def how_else(run_dir: Path) -> str:
    """Says how to go on where a directory can't be continued in."""
    return f"accepted is a new run, by fork={run_dir}/checkpoints/last.ckpt"


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
