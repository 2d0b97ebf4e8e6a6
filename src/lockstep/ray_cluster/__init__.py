"""Ray: a sweep whose jobs run where Ray has room for them, on this machine or on a cluster; and Ray Tune's schedulers.

launcher.py    hydra/launcher=ray: what jobs ask for; worker.py runs them on Ray's nodes
tune.py        sweep=ray_tune: a search whose jobs are ended early
"""
