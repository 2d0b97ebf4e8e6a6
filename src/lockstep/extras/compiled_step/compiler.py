"""torch's compiler, imported, and the keys of its version, by which it finds what it has kept: hashes of the files that it and
triton are made of, which it makes once a process. Where an import server has them, so have the jobs that it forks."""

import contextlib

import torch._inductor.config

# torch 2.12 asks while it is imported whether there is a GPU, to time kernels there by its own means instead of Triton's; after
# that no process that is forked could use one.
_unasked = {"use_experimental_benchmarker": False} if "2.12" <= torch.__version__ < "2.13" else {}
with torch._inductor.config.patch(_unasked):
    import torch._inductor.compile_fx
    from torch._inductor import codecache

for name in ("torch_key", "triton_key"):
    with contextlib.suppress(Exception):  # by other names in another torch, which makes them when it needs them
        getattr(codecache, name)()
