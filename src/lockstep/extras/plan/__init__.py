"""How many devices, which batch and which learning rate: an answer from parts of a training at several batches and rates.

sweep.py           `python train.py -m sweep=plan`, from the command line to the sentence
search.py          how long branches are, and what is measured next
training.py        the overrides that make them
callback.py        the losses of a branch at given numbers of samples
branches.py        which branches to try
surface.py         what each batch needs at each rate, by all of them
critical.py        the critical batch by their losses, with its interval, or what it is above
jobs.py            runs the jobs, and keeps account of what they cost
throughput.py      timings of a step, and the model that is fitted to them
link.py            latency and bandwidth of the link, measured apart
answer.py          goodput, the choice, and the sentence that says it
record.py          plan.json; report_section.py makes a page of it
"""
