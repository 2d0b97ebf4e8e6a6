"""Train one run:  python train.py [GROUP=OPTION ...] [key=value ...]

What runs is Lockstep's own train.py, with the configs of conf/ before Lockstep's. `lockstep --help` says where it is.
"""

from lockstep.__main__ import run_train

if __name__ == "__main__":
    run_train()
