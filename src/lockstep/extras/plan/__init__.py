"""How many devices, which batch and which learning rate: an answer from one short training and branches of it.

branches.py   which branches to try, and what their losses say of the batch
answer.py     goodput, the choice, and the sentence that says it
"""

FILES: list[str] = []
NEEDS = ["report"]
OPTIONAL_DEPENDENCIES: list[str] = []
