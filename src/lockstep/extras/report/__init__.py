"""The report of a sweep: speed-up, accuracy over GPU counts and rates, with pictures and intervals."""

FILES = [
    "docs/scaling-report.md",
    "conf/report.yaml",
    "scripts/report.py",
    "docs/report_first_screen.png",
    "docs/scaling_example.png",
    "docs/rates_example.png",
    "docs/tensorboard_report.png",
    "docs/tensorboard_hparams.png",
    "benchmarks/scaling_report",
    "scripts/allreduce.py",
]
OPTIONAL_DEPENDENCIES = ["report"]
