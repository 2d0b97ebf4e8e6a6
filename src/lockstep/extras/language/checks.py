"""What the arguments of the data and the net accept."""

from lockstep.config.rules import TEXT, integer, some

RULES = {
    "GPT": {
        **dict.fromkeys(("width", "heads"), integer(1)),
        "kv_heads": integer(1).or_null(),
        "depth": integer(1, 1000),  # layers are made one by one, however long that takes
        "separator": integer(-1).or_null(),
    },
    "Text": {
        **dict.fromkeys(("tokenizer", "cache_dir"), TEXT.or_null()),
        "paths": some("files and folders", TEXT).or_null(),
        "suffixes": some("endings such as .txt", TEXT),
        "context": integer(1),
    },
}
