"""torch's compiler, imported, and the keys of its version, by which it finds what it has kept: hashes of the files that it and
triton are made of, which it makes once a process. Where an import server has them, so have the jobs that it forks."""

import contextlib

import torch._inductor.compile_fx  # noqa: F401
from torch._inductor import codecache

for name in ("torch_key", "triton_key"):
    with contextlib.suppress(Exception):  # by other names in another torch, which makes them when it needs them
        getattr(codecache, name)()
