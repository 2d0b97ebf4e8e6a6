"""Command lines that are wrong, or look so, made from the composed config: of every key of every group, and what people have
typed."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.runs.composition import compose

SHORT = ("debug=fast", "trainer=cpu", "trainer.max_steps=1", "trainer.enable_progress_bar=false")

# Together these have every group's options; a key is tried in the first that has it.
BASES: tuple[tuple[str, ...], ...] = (
    ("model=mlp", "logger=csv"),
    ("logger=tensorboard", "trainer/communication=local_sgd"),
    (
        *("model=cnn", "model/optimizer=sgd", "model/lr_scheduler=cosine", "callbacks=[default,early_stopping]"),
        *("datamodule=synthetic_images", "datamodule.length=256", "datamodule.val_length=64", "datamodule.test_length=64"),
    ),
    (
        *("model=linear", "model/lr_scheduler=plateau", "datamodule=random_regression", "callbacks=ema"),
        *("optimized_metric=val/loss", "optimized_mode=min"),
    ),
    ("model=mlp", "model/adapt=lora", "callbacks=freeze", "callbacks.freeze.match=lora_up"),
    ("model=mlp", "datamodule/curriculum=root"),
    ("model=resnet18", "model/optimizer=adam", "model/lr_scheduler=one_cycle", "trainer/communication=power_sgd"),
    ("model/lr_scheduler=step", "datamodule=image_folder", "datamodule.data_dir=pictures", "datamodule.batch_size=2"),
    *((("datamodule=hf_dataset", "datamodule.data_dir=pictures", "datamodule.inputs=image"),) if find_spec("datasets") else ()),
    (
        *("model=gpt_nano", "datamodule=text", "callbacks=tokens", "optimized_metric=val/loss", "optimized_mode=min"),
        *("datamodule.batch_size=2", "datamodule.context=16"),
    ),
    ("logger=mlflow", "trainer/communication=fp16"),
    ("datamodule=mnist", "datamodule.data_dir=nodata"),
)

# What is right although it looks wrong, beside null where null is shipped: it must train.
RIGHT = (
    *("callbacks.?*=null", "guards.?*=null", "logger.?*=null", "callbacks=null", "logger=null"),
    "datamodule.augment=null",
    *("guards.checkpoint.every_n_epochs=null", "guards.preemption.deadline=null", "trainer.max_epochs=null"),
    *("callbacks.best_checkpoint.dirpath=null", "callbacks.best_checkpoint.filename=null", "logger.*.name=null"),
    *("callbacks.best_checkpoint.monitor=null", "logger.*.version=null", "logger.*.version=5", "model.torchmetrics=null"),
    *("model.param_groups=null", "model.net.separator=null"),
    "datamodule.suffixes=[[]nonsense]",  # of the files of folders, of which there are none
)
NAMED_BY_USERS = ("model.torchmetrics", "model.param_groups")  # the entries of these; what is in one is checked
FREE_TEXT = ("name", "*.dirpath", "*.filename", "*.save_dir", "*.experiment_name", "*.tracking_uri", "logger.*.name")
FREE_TEXT += ("logger.*.version", "logger.*.run_dir")
# Where the refusal rightly names another key: the one that no longer fits, or has no logger to be given to.
ELSEWHERE = {"model.metrics=[nonsense]": "optimized_metric", "logger.mlflow.tracking_uri=null": "logger.mlflow"}

# What has been seen to end in a traceback, or to train: the key that must be named, then the overrides.
TYPED = """
trainer.max_epochs              trainer.max_epochs=0
trainer.max_steps               trainer.max_steps=0
trainer.limit_train_batches     trainer.limit_train_batches=0
trainer.limit_train_batches     trainer.limit_train_batches=0.0001
trainer.val_check_interval      trainer.val_check_interval=0
trainer.val_check_interval      trainer.val_check_interval=100000
trainer.check_val_every_n_epoch trainer.check_val_every_n_epoch=3
trainer.accelerator             trainer.accelerator=mps
trainer.strategy.process_group_backend  trainer.devices=2 trainer.strategy.process_group_backend=nccl
trainer.devices                 trainer.devices=999999
trainer.devices                 trainer.devices=[0
trainer.devices                 trainer.devices=1,2
trainer.divices                 trainer.divices=2
trainer.num_nodes               trainer.num_nodes=2
trainer.num_sanity_val_steps    trainer.num_sanity_val_steps=x
trainer.checkpoint_io           trainer.checkpoint_io=null
trainer.checkpoint_io           trainer.checkpoint_io._target_=os.system
trainer.strategy                trainer.strategy=ddp
trainer.no_such_argument        +trainer.no_such_argument=1
trainer.profiler                +trainer.profiler=nope
trainer.callbacks               +trainer.callbacks=5
trainer.logger                  +trainer.logger=x
trainer.plugins                 +trainer.plugins=5
trainer.barebones               +trainer.barebones=true
trainer.max_time                trainer.max_time=1h
trainer.precision               trainer.precision=8
model.net                       model.net=null
model.net.hidden                model=mlp model.net.hidden=x
model.net.hidden                model=mlp model.net.hidden=-5
model.net.hidden                model=mlp model.net.hidden=[-5]
model.net.hidden                model=mlp model.net.hidden.foo=3
model.net._target_              model.net._target_=nope
model.net._target_              model.net._target_=lockstep.nets.Nope
model.net._target_              model.net._target_=os.system
model.net.depth                 model=resnet18 model.net.depth=19
model.net.num_outputs           +model.net.num_outputs=3
model.optimizer                 model.optimizer=adam
model.lr_scheduler              model.lr_scheduler=cosine
model/optimizer                 model/optimizer=lion
model/optimizer                 model/optimizer=null
model.optimizer.foo             +model.optimizer.foo=1
model.optimizer.lrr             model.optimizer.lrr=1
model.optimizer.betas           model.optimizer.betas=[2,2]
model.optimizer.eps             +model.optimizer.eps=-1
model.optimizer.line_search_fn  trainer.devices=2 +model.optimizer.line_search_fn=strong_wolfe
model                           model=5
model                           model=perceptron
model                           model=null
model.metrics                   model.metrics=[loss,acc,f1]
datamodule                      datamodule=random_regression model=mlp
model.net._target_              datamodule=random_regression
datamodule.data_dir             datamodule=image_folder
datamodule.data_dir             datamodule=image_folder datamodule.data_dir=logs
datamodule.data_dir             datamodule=image_folder datamodule.data_dir=nowhere
datamodule.seed                 datamodule.seed=x
datamodule.shape                datamodule=synthetic_images datamodule.shape=5
datamodule.shape                datamodule=synthetic_images datamodule.shape=[-1,4,4]
datamodule.shape                datamodule=synthetic_images datamodule.shape=[0,1,1]
datamodule.augment.crop         datamodule=synthetic_images datamodule.augment.crop=4
datamodule.augment              +datamodule.augment.zoom=2
datamodule.global_batch_size    datamodule.global_batch_size=49 trainer.devices=2
datamodule.batch_size           datamodule.batch_size=5000
datamodule.batch_size           datamodule.batch_size=auto
datamodule.batch_size           datamodule.batch_size=most
datamodule.global_batch_size    datamodule.batch_size=auto datamodule.global_batch_size=64
datamodule.fold                 datamodule.folds=3 datamodule.fold=3
datamodule._target_             datamodule._target_=lightning.LightningDataModule
callbacks.best_checkpoint.mode  callbacks.best_checkpoint.mode=up
callbacks.best_checkpoint.save_top_k  callbacks.best_checkpoint.save_top_k=x
callbacks.early_stopping.min_delta    callbacks=[default,early_stopping] callbacks.early_stopping.min_delta=x
callbacks.nope                  +callbacks.nope=5
callbacks.nope._target_         +callbacks.nope._target_=nope.Nope
guards.checkpoint               guards.checkpoint=5
guards                          guards=null
logger                          logger=mlflow
logger                          logger=wandb
ckpt_path                       ckpt_path=nowhere.ckpt
ckpt_path                       ckpt_path=pictures/a/0.png
init_from                       init_from=pictures
trainer.max_epochs              ckpt_path=later.ckpt
model.optimizer._target_        ckpt_path=sgd.ckpt trainer.max_epochs=9
ckpt_path                       ckpt_path=later.ckpt model.net.width=7 trainer.max_epochs=99
resume                          resume=nowhere
optimized_metric                optimized_metric=val/f1
optimized_metric                optimized_metric=test/acc test=false
seed                            ~seed
seed                            +seed=3
seed                            seed=[
seed                            seed=${nope}
seed                            seed=${oc.env:NO_SUCH_VARIABLE}
seed                            seed.foo=3
nope                            ~nope
nope                            nope@model=3
hydra.launcher.jobs             hydra.launcher.jobs=x
"""


@dataclass(frozen=True)
class Line:
    """What is wrong with a command line, its overrides, and the key that its refusal must name; None where it must train."""

    kind: str
    overrides: tuple[str, ...]
    key: str | None

    def __str__(self) -> str:
        return " ".join(self.overrides)


def lines() -> Iterator[Line]:
    seen: set[str] = set()
    for base in BASES:
        for key, value in _walk(compose(*SHORT, *base)):
            if key not in seen and key != "run_dir":
                yield from (Line(kind, (*base, override), key) for kind, override, key in _variants(key, value))
            seen.add(key)
    for name, _, text in (line.partition(" ") for line in TYPED.strip().splitlines()):
        yield Line("typed", tuple(text.split()), name)


def _walk(cfg: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in cfg.items():
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig):
            yield from _walk(value, f"{prefix}{name}.")


def _variants(key: str, value: Any) -> Iterator[tuple[str, str, str | None]]:
    """(kind, override, the key to be named) of one key."""
    wrong = [("another type", text) for text in _of_another_type(value)]
    wrong += [("out of range", text) for text in _out_of_range(key, value)]
    wrong += [("null", "null")] if value is not None else []
    for kind, text in wrong:
        override = f"{key}={text}"
        is_right = any(fnmatch(override, right) and override.count(".") == right.count(".") for right in RIGHT)
        named = key.removesuffix("._partial_")  # without it, what is lacking is named
        yield ("right", override, None) if is_right else (kind, override, ELSEWHERE.get(override, named))
    if isinstance(value, DictConfig):
        yield "unknown key", f"{key}.no_such_key=1", f"{key}.no_such_key"
        yield "unknown key", f"+{key}.no_such_key=1", key if key in NAMED_BY_USERS else f"{key}.no_such_key"


def _of_another_type(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("perhaps",)
    if isinstance(value, int | float):
        return "x", "true"
    if isinstance(value, str):
        return "5", "{a: 1}"
    if OmegaConf.is_list(value):
        return "5", "x"
    return ("5", "x") if isinstance(value, DictConfig) else ("{a: 1}", "[x]")


def _out_of_range(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ()
    if isinstance(value, int | float):
        return ("-7",) if isinstance(value, int) else ("-7", "nan")
    if isinstance(value, str):
        return () if any(fnmatch(key, free) for free in FREE_TEXT) else ("nonsense",)
    return ("[nonsense]", "[-1]") if OmegaConf.is_list(value) else ()
