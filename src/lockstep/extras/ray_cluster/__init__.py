"""Ray: a sweep whose jobs run where Ray has room for them, on this machine or on a cluster; and a search by Ray Tune.

launcher.py    hydra/launcher=ray: what jobs ask for, with settings.py; worker.py runs them on Ray's nodes
tune.py        sweep=ray_tune: a search whose jobs are ended early
stopping.py    the callback that ends jobs early; reports.py asks Ray Tune's scheduler
"""
