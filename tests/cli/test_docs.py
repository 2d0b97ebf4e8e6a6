"""Every block of commands and of Python in README and docs is run, once if it is there twice, or says beside it why not.

A block is left out by a line before it: <!-- not run: REASON -->. Trainings are cut short; RUN_DIR and SWEEP_DIR
stand for directories that are made here once.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import LONG, ROOT, python, record, train

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>bash|python)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
SHORT = ("trainer.accelerator=cpu", "trainer.max_epochs=1", "trainer.limit_train_batches=3")
SHORT += ("trainer.limit_val_batches=2", "trainer.limit_test_batches=2")


class Block(NamedTuple):
    """A fenced block, and why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None


def blocks() -> Iterator[Block]:
    for page in PAGES:
        content = page.read_text()
        for result in BLOCK.finditer(content):
            line = content.count("\n", 0, result.start("text"))
            yield Block(page, line, result["language"], result["text"], result["reason"])


def parse_commands(block: Block) -> list[list[str]]:
    """The command lines of a block, split as a shell does, without their comments."""
    joined = block.text.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def new_blocks() -> list[Block]:
    """Return the commands that are run, without those that an earlier one has shown."""
    seen: set[frozenset[str]] = set()
    result = []
    for block in (block for block in blocks() if not block.reason):
        lines = parse_commands(block) if block.language == "bash" else [[block.text]]
        commands = {frozenset(words) for words in lines}
        result += [block] if commands - seen else []
        seen |= commands
    return result


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, RUN_DIR, and a sweep, SWEEP_DIR."""
    folder = tmp_path_factory.mktemp("docs")
    train(*SHORT, "hydra.run.dir=RUN_DIR", cwd=folder, code=0)
    python(ROOT / "train.py", "-m", *SHORT, "seed=0", "hydra.sweep.dir=SWEEP_DIR", cwd=folder, code=0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("block", new_blocks(), ids=lambda block: f"{block.page.name}:{block.line}")
def test_what_a_page_shows_runs(block: Block, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    if block.language == "python":
        (tmp_path / "block.py").write_text(block.text)
        python(tmp_path / "block.py", cwd=tmp_path, code=0)
        return
    for command in parse_commands(block):
        reason = f"{block.page.name}:{block.line}: {command} can't be run here: give the reason"
        assert command[0] == "lockstep" or command[:2] == ["python", "train.py"], reason
        script = ROOT / ("train.py" if command[0] == "python" else f"scripts/{command[1]}.py")
        arguments = command[2:]
        if command[0] == "python" and not is_without_training(arguments):
            is_fork = any(item.startswith("fork=") for item in arguments)  # of a run of one epoch
            arguments += [*SHORT, *["trainer.max_epochs=2"] * is_fork]
        is_resumed = arguments == ["resume", "SWEEP_DIR"]  # which is done where the sweep was started
        python(script, *arguments, cwd=made if is_resumed else tmp_path, timeout=200, code=0)


@pytest.mark.slow
def test_the_notebook_runs_and_holds_no_output(made: Path, tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], [cell["outputs"] for cell in cells]) == (4, [[]] * len(cells))
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "notebook.py").write_text("\n".join("".join(cell["source"]) for cell in cells))
    done = python(tmp_path / "notebook.py", cwd=tmp_path, MPLBACKEND="agg", code=0)
    assert "the step has moved the weights by" in done.stdout


@pytest.mark.slow
def test_the_parts_of_the_recipes_train_together(tmp_path: Path) -> None:
    parts, command = [block for block in blocks() if block.page.name == "recipes.md"][:2]
    (tmp_path / "my_parts.py").write_text(parts.text)
    (arguments,) = parse_commands(command)
    python(ROOT / "train.py", *arguments[2:], *SHORT, "hydra.run.dir=run", cwd=tmp_path, PYTHONPATH=str(tmp_path), code=0)
    metrics = record(tmp_path / "run")["metrics"]
    assert 0.1 < metrics["val/confidence"] < 1


def write_project(folder: Path, page: str) -> None:
    """Write the files that a page shows, and what else the shortest project has."""
    text = (ROOT / "docs" / page).read_text()
    files = re.findall(r"^# (\S+\.(?:py|yaml))\n(.*?)(?=^# |^```)", text, re.MULTILINE | re.DOTALL)
    files += re.findall(r"`(conf/\S+\.yaml)` is `(.+?)`", text)
    files += [("train.py", (ROOT / "train.py").read_text())]
    files += [("conf/train.yaml", "defaults: [model: cnn, datamodule: digits, base, _self_]")]
    for name, content in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.mark.slow
def test_a_callback_a_net_a_data_set_a_logger_and_a_strategy_are_two_files_each(tmp_path: Path) -> None:
    write_project(tmp_path, "extending.md")
    command = next(block for block in blocks() if block.page.name == "extending.md" and block.language == "bash")
    (arguments,) = parse_commands(command)
    done = python(tmp_path / "train.py", *arguments[2:], *SHORT, "hydra.run.dir=run", cwd=tmp_path, code=0)
    assert "validated after 3 steps" in done.stdout
    facts = record(tmp_path / "run")
    assert (facts["world_size"], facts["strategy"], "test/acc" in facts["metrics"]) == (2, "Halved", True)
    assert "val/acc" in (tmp_path / "run" / "lines" / "metrics.csv").read_text()


NOISY = """
from torch import nn

from my_model import MyModel
from noisy import diffusion, mixup, variational


class Mixup(MyModel):
    def training_step(self, batch, batch_idx):
        return mixup(self.net, *batch)


class Variational(MyModel):
    def __init__(self):
        super().__init__()
        self.net = nn.ModuleList([nn.Linear(64, 16), nn.Linear(8, 64)])

    def loss(self, x):
        return variational(*self.net, x)

    def training_step(self, batch, batch_idx):
        return self.loss(batch[0].flatten(1))

    def validation_step(self, batch, batch_idx):
        self.log("val/acc", self.loss(batch[0].flatten(1)))


class Diffusion(Variational):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(65, 64)

    def loss(self, x):
        return diffusion(self.net, x)
"""
OWN = [block for block in blocks() if block.page.name == "your-code.md" and block.language == "bash"]


@pytest.mark.slow
@pytest.mark.parametrize("block", [*OWN, None], ids=["module", "segmentation", "noise"])
def test_code_of_one_s_own_gives_on_two_processes_what_it_gives_on_one(block: Block | None, tmp_path: Path) -> None:
    write_project(tmp_path, "your-code.md")
    noise = ["python", "train.py", "model=mixup,variational,diffusion", "trainer.devices=2"]
    (command,) = parse_commands(block) if block else [noise]
    assert command.pop() == "trainer.devices=2"
    write_project(tmp_path, "recipes.md")
    (tmp_path / "modules.py").write_text(NOISY)
    for name in ("Mixup", "Variational", "Diffusion"):
        (tmp_path / "conf" / "model" / f"{name.lower()}.yaml").write_text(f"_target_: modules.{name}")
    options = ("-m", *command[2:], "trainer.devices=1,2", *SHORT, "hydra.sweep.dir=sweep")
    python(tmp_path / "train.py", *options, cwd=tmp_path, timeout=LONG, code=0)
    facts = [record(file.parent) for file in sorted((tmp_path / "sweep").glob("*/metrics.json"))]
    one, two = ([of for of in facts if of["world_size"] == number] for number in (1, 2))
    assert len(one) == len(two) == (1 if block else 3)
    for alone, together in zip(one, two, strict=True):
        assert together["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
        assert together["not_as_one_process"] == []


def is_without_training(arguments: list[str]) -> bool:
    """Or takes its length from elsewhere."""
    return any(argument in ("--help", "--cfg") or argument.startswith(("debug=", "resume=")) for argument in arguments)


def test_what_is_not_run_says_why() -> None:
    reasons = [block.reason for block in blocks() if block.reason is not None]
    assert all(len(reason.split()) > 2 for reason in reasons)
    assert len(list(blocks())) - len(reasons) >= 10


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
