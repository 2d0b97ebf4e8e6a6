"""The forward pass, the loss and the backward pass of a step as one graph by torch.compile: `trainer.compile_step=true`.

events.py      gives it to the trainer
epoch_loop.py  the step around the graph: all-reduce, hooks, clipping, optimizer
graph.py       the graph, and why there is none
record.py      what metrics.json says of it
compiler.py    what torch imports and computes once a process
rehearsal.py   what it makes when it first compiles, in a process that others are forked from
cache.py       where torch keeps what it has compiled
"""
