"""Hydra's seam for sweep=plan: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

from hydra_plugins.lockstep_sweeper import JobSweeper


class PlanSweeper(JobSweeper):
    """The jobs that a plan is made of, one after the other; see lockstep.extras.plan.sweep."""

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.extras.plan.sweep import PlanSweep

        given = [f"{key}={value}" for key, value in (self.settings.get("params") or {}).items()]
        PlanSweep(self.config, self.loader, self.launcher, [*given, *arguments]).run()
