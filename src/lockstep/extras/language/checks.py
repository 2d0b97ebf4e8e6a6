"""What the arguments of the data, the net and the callback accept."""

from lockstep.config.rules import TEXT, above, integer, some

RULES = {
    "GPT": {
        **dict.fromkeys(("width", "heads"), integer(1)),
        **dict.fromkeys(("mlp_width", "kv_heads"), integer(1).or_null()),
        **dict.fromkeys(("rope_base", "norm_eps"), above(0)),
        "depth": integer(1, 1000),  # layers are made one by one, however long that takes
        "separator": integer(-1).or_null(),
    },
    "Text": {
        **dict.fromkeys(("tokenizer", "separator", "cache_dir"), TEXT.or_null()),
        "paths": some("files and folders", TEXT).or_null(),
        "suffixes": some("endings such as .txt", TEXT),
        "context": integer(1),
        "overlap": integer(0),
    },
    "TokenThroughput": {"peak_flops": above(0).or_null()},
}
