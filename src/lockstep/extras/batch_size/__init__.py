"""datamodule.batch_size=auto: the largest batch that fits in memory."""

HALVED = "events.batch_size.halved"  # the key that keeps from which sizes a run that was out of memory has come
