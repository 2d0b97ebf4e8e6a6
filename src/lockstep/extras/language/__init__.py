"""Language models: text as tokens, GPT, Llama, sampling."""

FILES = [
    "benchmarks/gpt_stdlib.py",
    "conf/trainer/plan/gpt.yaml",
    "docs/language-models.md",
    "conf/datamodule/text.yaml",
    "conf/model/gpt.yaml",
    "conf/model/gpt_nano.yaml",
    "conf/model/gpt_small.yaml",
    "conf/model/language_model.yaml",
    "conf/callbacks/tokens.yaml",
    "conf/experiment/gpt_stdlib.yaml",
    "scripts/generate.py",
    "scripts/import_llama.py",
    "templates/text",
]
NEEDS = ["file_cache", "rates", "saved_runs"]
