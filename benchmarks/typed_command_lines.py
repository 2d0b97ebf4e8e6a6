"""Command lines that are wrong, written by hand: a line each, first what must be named."""

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
trainer.accumulate_grad_batches  datamodule.batch_size=auto datamodule.global_batch_size=64 trainer.accumulate_grad_batches=2
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
fork                            fork=nowhere.ckpt
fork                            fork=pictures/a/0.png
init_from                       init_from=pictures
trainer.max_epochs              fork=later.ckpt
fork                            fork=later.ckpt model.net.width=7 trainer.max_epochs=99
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


# Keys of which each may have its value, but not together, or not with this data.
TOGETHER = """
trainer.strategy.static_graph   trainer.devices=2 trainer.strategy.static_graph=true trainer.accumulate_grad_batches=2
trainer.devices                 trainer.devices=99 max_processes_per_core=1
model.lr_scheduler              ~model.lr_scheduler
model.lr_scheduler.gamma        model/lr_scheduler=plateau model.lr_scheduler.gamma=1.5
model.optimizer                 ~model.optimizer
model._target_                  ~model.net
datamodule.val_fraction         datamodule.val_fraction=0.0001
datamodule.folds                datamodule.folds=100000
datamodule.data_dir             datamodule=cached_image_folder datamodule.data_dir=damaged datamodule.batch_size=2
datamodule.overlap              model=gpt_nano datamodule=text datamodule.overlap=300 optimized_metric=val/loss optimized_mode=min
datamodule.num_workers          datamodule.num_workers=17 max_processes_per_core=1
datamodule.persistent_workers   datamodule.persistent_workers=true
sweep                           sweep=lr
hydra.launcher.jobs             hydra.launcher.jobs=2
hydra/launcher                  hydra/launcher=slurm
hydra.sweeper.params            hydra.sweeper.params={seed:1}
hydra.sweep.dir                 hydra.sweep.dir=there
hydra.sweeper.objectives        -m sweep=optuna hydra.sweeper.objectives={val/foo:max}
hydra.sweeper.objectives        -m sweep=optuna hydra.sweeper.objectives={val/acc:most}
name                            name=a/../../../../b
hydra.run.dir                   hydra.run.dir=odd/pipe
hydra.run.dir                   hydra.run.dir=odd/folders
resume                          resume=odd/pipe
resume                          resume=odd/folders
"""

# Sizes that no machine has.
SIZES = """
datamodule.shape        datamodule=synthetic_images datamodule.shape=[3,999999,999999]
datamodule.length       datamodule=synthetic_images datamodule.length=100000000000000000000
datamodule.augment.crop datamodule=synthetic_images +datamodule.augment.crop=999999999
datamodule.num_workers  datamodule.num_workers=1000000
datamodule.size         datamodule=image_folder datamodule.data_dir=pictures datamodule.batch_size=2 datamodule.size=999999
datamodule.context      model=gpt_nano datamodule=text optimized_metric=val/loss optimized_mode=min datamodule.context=99999999
datamodule.context      experiment=gpt_stdlib datamodule.context=999999999
model.net.hidden        model=mlp model.net.hidden=[1000000000000]
"""

# What other programs leave in the environment, with which a run trains or names the variable: that, then all of them.
ENVIRONMENT = """
WORLD_SIZE              WORLD_SIZE=0
WORLD_SIZE              WORLD_SIZE=x
WORLD_SIZE              WORLD_SIZE=2
RANK                    RANK=1
RANK                    RANK=x
LOCAL_RANK              LOCAL_RANK=1
LOCAL_RANK              LOCAL_RANK=x
NODE_RANK               NODE_RANK=x
LOCAL_WORLD_SIZE        LOCAL_WORLD_SIZE=x
GROUP_RANK              GROUP_RANK=x
MASTER_PORT             MASTER_PORT=x
MASTER_ADDR             MASTER_ADDR=nowhere.invalid
RANK                    RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1
LOCKSTEP_PARENT_PIPE    LOCKSTEP_PARENT_PIPE=x
LOCKSTEP_PARENT_PIPE    LOCKSTEP_PARENT_PIPE=x WORLD_SIZE=1
LOCKSTEP_PARENT_PIPE    LOCKSTEP_PARENT_PIPE=x WORLD_SIZE=1 RANK=0 LOCAL_RANK=0
LOCKSTEP_SWEEP_PIPE     LOCKSTEP_SWEEP_PIPE=x
LOCKSTEP_SWEPT_KEYS     LOCKSTEP_SWEPT_KEYS=x
LOCKSTEP_RESTARTS       LOCKSTEP_RESTARTS=x
LOCKSTEP_ERROR_DIR      LOCKSTEP_ERROR_DIR=nowhere
LOCKSTEP_JOB            LOCKSTEP_JOB=x
WORLD_SIZE              TORCHELASTIC_RUN_ID=stray
RANK                    TORCHELASTIC_RUN_ID=stray WORLD_SIZE=2
RANK                    TORCHELASTIC_RUN_ID=stray WORLD_SIZE=2 RANK=x LOCAL_RANK=0
TORCHELASTIC_RESTART_COUNT  TORCHELASTIC_RESTART_COUNT=x
SLURM_NTASKS            SLURM_NTASKS=x
SLURM_NTASKS            SLURM_NTASKS=2
SLURM_PROCID            SLURM_PROCID=x
SLURM_PROCID            SLURM_PROCID=1
SLURM_NTASKS            SLURM_NTASKS=2 SLURM_PROCID=0
SLURM_LOCALID           SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_NTASKS_PER_NODE=2
SLURM_NTASKS            SLURM_NTASKS=x SLURM_PROCID=0
SLURM_JOB_ID            SLURM_JOB_ID=x
SLURM_JOB_ID            SLURM_JOB_ID=1 SLURM_NTASKS=1 SLURM_PROCID=0
SLURM_NTASKS            SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2
SLURM_ARRAY_TASK_ID     SLURM_ARRAY_JOB_ID=1
SLURM_RESTART_COUNT     SLURM_RESTART_COUNT=x
SLURM_NNODES            SLURM_NNODES=x
OMP_NUM_THREADS         OMP_NUM_THREADS=x
CUDA_VISIBLE_DEVICES    CUDA_VISIBLE_DEVICES=x
GLOO_SOCKET_IFNAME      GLOO_SOCKET_IFNAME=nope0
PL_GLOBAL_SEED          PL_GLOBAL_SEED=x
"""

# The script, the key that must be named, its arguments.
SCRIPTS = """
lr_range.py     lr_range.steps      lr_range.steps=x
lr_range.py     lr_range.steps      lr_range.steps=null
lr_range.py     lr_range.steps      lr_range.steps=5
lr_range.py     lr_range.from       lr_range.from=x
lr_range.py     lr_range.from       lr_range.from=0
lr_range.py     lr_range.to         lr_range.to=null
lr_range.py     lr_range.to         lr_range.to=1e-9
lr_range.py     lr_range.to         lr_range.to=[1]
lr_range.py     lr_range.stop_at    lr_range.stop_at=0
lr_range.py     lr_range.stop_at    lr_range.stop_at={a:1}
lr_range.py     lr_range.stepps     lr_range.stepps=5
lr_range.py     datamodule.shape    datamodule=synthetic_images datamodule.shape=[3,999999,999999]
lr_range.py     model.net.width     model.net.width=x
parity.py       trainer.devices     trainer.devices=x
parity.py       model.net.width     model.net.width=0
evaluate.py     RUN_DIR             nowhere
evaluate.py     RUN_DIR             pictures
score.py        RUN_DIR             nowhere
generate.py     RUN_DIR             nowhere
predict.py      RUN_DIR             nowhere pictures/a/0.png
export.py       RUN_DIR             nowhere
sweep.py        SWEEP_DIR           resume nowhere
sweep.py        SWEEP_DIR           status nowhere
report.py       SWEEP_DIR           nowhere
pack.py         datamodule          datamodule=digits
pack.py         damaged/c/7.png     datamodule=cached_image_folder datamodule.data_dir=damaged
import_llama.py FOLDER              nowhere out.ckpt
import_llama.py config.json         llama out.ckpt
"""
