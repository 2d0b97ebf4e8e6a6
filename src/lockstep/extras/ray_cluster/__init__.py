"""Ray: a sweep whose jobs run where Ray has room for them, on this machine or on a cluster; and a search by Ray Tune.

launcher.py    hydra/launcher=ray: what jobs ask for, with settings.py; cluster.py is the Ray that is asked
attempt.py     one job that Ray has been asked to run; worker.py and agent.py run it on its nodes
tune.py        sweep=ray_tune: which jobs a search has, with parts.py
stopping.py    the callback that ends jobs early; reports.py asks Ray Tune's scheduler
"""
