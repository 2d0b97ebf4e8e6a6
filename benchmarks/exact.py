"""The same bits on 1, 2, 4 and 8 processes, for shipped models under `trainer.exact=8`:

    python benchmarks/exact.py [--steps 200] [--only TEXT ...] > benchmarks/exact.md

Each row is a sweep of `train.py` over the number of processes, one thread each. It says yes if `exact_hash` in metrics.json, of
weights, buffers and optimizer states at the end, is the same for all of them. Exit code 1 if one is not.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hardware import processor
from run import heading

ROOT = Path(__file__).resolve().parents[1]
COUNTS, PRECISIONS = (1, 2, 4, 8), ("32-true", "bf16-mixed")
FIXED = ("trainer=cpu", "trainer.exact=8", "test=false", "logger=csv", "callbacks.pictures=null", "trainer.max_epochs=-1")
FIXED += ("trainer.limit_val_batches=2", "optimized_metric=train/loss", "optimized_mode=min")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[3,8,8]", "datamodule.length=483", "datamodule.val_length=40")
IMAGES += ("datamodule.batch_size=4",)
RAGGED = "datamodule.drop_last=false"  # the last batch of an epoch has three samples: five of eight workers have none
AUGMENTED = "datamodule.augment={crop: 1}"
VIT = ("model=vit", "model.net.width=32", "model.net.depth=2", "model.net.heads=2", "model.net.patch=4", *IMAGES)
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", "datamodule=text", f"datamodule.paths=[{ROOT}/README.md]")
GPT += ("datamodule.context=32", "datamodule.batch_size=1")
SGD, EMA, CLIPPED = "model/optimizer=sgd", "callbacks=ema", "trainer.gradient_clip_val=0.1"
MODELS: dict[str, tuple[str, ...]] = {
    "mlp, AdamW, dropout, EMA, ragged tail": ("model=mlp", "model.net.dropout=0.2", EMA, *IMAGES, RAGGED),
    "mlp, SGD, clipped": ("model=mlp", SGD, CLIPPED, *IMAGES),
    "cnn (BatchNorm), AdamW, augmentation, data worker, ragged tail": (
        *("model=cnn", "model.net.width=8", *IMAGES, AUGMENTED, RAGGED),
        "datamodule.num_workers=1",
    ),
    "vit, AdamW, augmentation, data worker": (*VIT, AUGMENTED, "datamodule.num_workers=1"),
    "vit, SGD, clipped, EMA, ragged tail": (*VIT, SGD, CLIPPED, EMA, RAGGED),
    "gpt, AdamW, clipped, ragged tail": (*GPT, CLIPPED, RAGGED),
    "resnet18, SGD, augmentation, ragged tail": (
        *("model=resnet18", SGD, *IMAGES, AUGMENTED, RAGGED),
        "datamodule.length=470",  # two samples or three for each worker in a tail: its last BatchNorm has a value of each
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="models with such a text in their names")
    arguments = parser.parse_args()
    print(f"{heading(processor())}\n\n| | precision | steps | the same bits on {', '.join(map(str, COUNTS))} processes |")
    print("|---|---|---|---|", flush=True)
    are_equal = True
    for name in (name for name in MODELS if any(text in name for text in arguments.only)):
        for precision in PRECISIONS:
            found = hashes(*MODELS[name], f"trainer.precision={precision}", f"trainer.max_steps={arguments.steps}")
            is_equal = len(set(found)) == 1
            are_equal &= is_equal
            verdict = f"yes, `{found[0]}`" if is_equal else f"NO: {', '.join(found)}"
            print(f"| {name} | {precision} | {arguments.steps} | {verdict} |", flush=True)
    sys.exit(not are_equal)


def hashes(*options: str) -> list[str]:
    """The first digits of a hash for each number of processes."""
    with TemporaryDirectory() as folder:
        counts = f"trainer.devices={','.join(map(str, COUNTS))}"
        where = (f"hydra.sweep.dir={folder}/sweep", *([f"datamodule.cache_dir={folder}"] if "datamodule=text" in options else []))
        command = [sys.executable, str(ROOT / "train.py"), "-m", *FIXED, *options, counts, *where]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
        records = [json.loads(file.read_text()) for file in Path(folder, "sweep").glob("*/metrics.json")]
    assert sorted(record["world_size"] for record in records) == list(COUNTS)
    return [record["exact_hash"][:12] for record in records]


if __name__ == "__main__":
    main()
