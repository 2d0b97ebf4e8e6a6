"""Torch's own one-cycle and plateau schedules, fitted to how long training lasts and to the metric that a run is compared by."""

FORMER_NAMES = {
    "lockstep.models.schedules.one_cycle": "lockstep.extras.torch_schedules.schedules.one_cycle",
    "lockstep.models.schedules.plateau": "lockstep.extras.torch_schedules.schedules.plateau",
}
