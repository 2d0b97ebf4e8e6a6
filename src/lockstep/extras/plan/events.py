"""What `plan` means for a run: it says how a plan is made, and nothing of what a job of it computes."""

from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class PlanSettings(RunEvents):
    settings = ("plan",)
