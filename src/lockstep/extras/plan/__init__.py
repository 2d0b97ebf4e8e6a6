"""How many devices, which batch and which learning rate: an answer from one short training and branches of it.

sweep.py           `python train.py -m sweep=plan`, from the command line to the sentence
search.py          the short training and its branches, and what is measured next
training.py        the overrides that make them
callback.py        the losses of a branch at given numbers of samples
branches.py        which branches to try, and what their losses say of the batch
jobs.py            runs the jobs, and keeps account of what they cost
throughput.py      timings of a step, and the model that is fitted to them
link.py            latency and bandwidth of the link, measured apart
critical.py        the critical batch at a checkpoint, with its interval, or what it is above
answer.py          goodput, the choice, and the sentence that says it
record.py          plan.json; report_section.py makes a page of it
"""

FILES = [
    "docs/plan.md",
    "conf/sweep/plan.yaml",
    "conf/hydra/sweeper/plan.yaml",
    "scripts/plan.py",
    "src/hydra_plugins/lockstep_plan.py",
    "benchmarks/plan.py",
    "benchmarks/plan_grids.py",
    "benchmarks/plan.md",
]
NEEDS = ["fork", "noise_scale", "report"]
OPTIONAL_DEPENDENCIES: list[str] = []
