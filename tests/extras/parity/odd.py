"""What a parity comparison is to say of the models and data of planted_equal.py, _unequal.py, _noise.py and _data.py."""

# What a comparison does not keep, or does not need, is not built either.
BARE = ("~callbacks", *(f"events.{name}=null" for name in ("mirror", "batch_size", "code", "fork")))
BARE += tuple(f"++guards.{name}=null" for name in ("checkpoint", "preemption", "nonfinite", "watchdog"))


def odd(module: str, *overrides: str, data: str = "Rows", steps: int = 2) -> tuple[str, ...]:
    targets = (f"model._target_=planted_{module}", f"datamodule._target_=planted_data.{data}")
    targets += () if data == "TestRows" else ("test=false",)
    return (*targets, f"parity.steps={steps}", *overrides)


SWA = ("+callbacks.swa._target_=lightning.pytorch.callbacks.StochasticWeightAveraging", "+callbacks.swa.swa_lrs=0.01")
EQUAL_BUT = {  # with what is said beside it
    "a layer that is unfrozen later": (odd("equal.UnfreezesLater"), "no gradient in any step (backbone.bias, backbone.weight)"),
    "an epoch of more steps": (odd("equal.Plain", steps=1), "these 1 steps end before the first epoch, of 2, does"),
    "data without a length": (
        odd("equal.Plain", data="Streams"),
        "it is not known whether the first epoch ends within these 2 steps",
    ),
    "time as the first axis": (
        odd("equal.TimeMajor", data="TimeFirst"),
        "The control: batches in another order are another training",
    ),
    "folders and checkpoints of its own": (odd("equal.Leaves", steps=6), ""),
    "data workers": (odd("equal.Plain", data="ReadByWorkers"), ""),
    "padded sentences": (odd("equal.Tokens", data="Sentences"), "as padded ones have (batch.ids, batch.labels)"),
    "a model that converges": (odd("equal.Converges", steps=12), ""),
    "a metric in float32": (odd("equal.Float32Mean"), ""),
    "sparse, with a logger, in dictionaries": (
        odd("equal.EverythingOdd", data="BareLoader"),
        "state that is no tensor (_extra_state)",
    ),
    "bound to float32": (odd("equal.Float32Only", "parity.precision=run"), ""),
    "averaged weights, a cycle": (odd("equal.OneCycle", *SWA), ""),
    "a mean of training without sync_dist": (odd("equal.TrainMetric"), ""),
    "a mean of the test without sync_dist": (odd("equal.TestMetric", data="TestRows"), ""),
    "a validation that does not divide": (odd("equal.Plain", data="UnevenValidation"), ""),
}

SHARED = "running statistics of each process"
ALONE = "a net or a loss that sees the batch of its process alone"
ACCUMULATED = "trainer.accumulate_grad_batches=2"
EQUAL_BUT |= {
    "state that moves in each forward, accumulated": (odd("equal.SpectralNorm", ACCUMULATED, steps=1), ""),
    "a mean of all in each forward, accumulated": (odd("equal.SharedMean", ACCUMULATED, steps=1), ""),
    "a bias before a norm": (
        odd("equal.BiasBeforeNorm"),
        "gradients are rounding alone, as those of a bias before a norm (layer.0.b",
    ),
}

UNEQUAL = {  # what differs first, and why
    "running statistics": (
        odd("unequal.InstanceNorm"),
        "in step 0: buffers of norm.running_",
        "running statistics of each process",
    ),
    "a mean of one's own": (odd("unequal.RunningMean"), "in step 0: buffers of mean", "running statistics of each process"),
    "alone": (
        odd("unequal.LoggedAlone"),
        "in the validation after step 1: validation metrics of val/alone",
        "none of the",
    ),
    "a maximum": (
        odd("unequal.Largest", data="UnevenValidation"),
        "in the validation after step 1: validation metrics of val/largest",
        "a metric that sees the batch of its process alone",
    ),
    "imaginary": (odd("unequal.Imaginary", "parity.precision=run"), "in step 0: gradients of phase", "none of the causes known"),
    "after the step": (odd("unequal.Centre", steps=1), "in step 0: buffers of centre", SHARED),
    "after the epoch": (odd("unequal.Prototypes", steps=1), "in step 0: buffers of centre", SHARED),
    "after the validation": (odd("unequal.Threshold", steps=1), "in step 0: buffers of centre", SHARED),
    "beside a large entry": (odd("unequal.SmallBesideLarge", steps=1), "in step 0: buffers of mean", SHARED),
    "of the batch's shape": (odd("unequal.StatefulGRU"), "in step 0: buffers of hidden, by inf", SHARED),
    "a sum": (odd("unequal.SumLoss", steps=1), "in step 0: gradients", "a loss that is a sum over the batch"),
    "a sum, accumulated": (
        odd("unequal.SumLoss", ACCUMULATED, steps=1),
        "in step 0: gradients",
        "a loss that is a sum over the batch",
    ),
    "samples as time": (odd("unequal.TimeForSamples", steps=1), "in step 0: gradients", "samples taken for time"),
    "coupled": (odd("unequal.Coupled", steps=1), "in step 0: gradients", ALONE),
    "a norm by a function": (
        odd("unequal.FunctionalNorm", steps=1),
        "in step 0: gradients",
        "batch_norm called by no BatchNorm layer",
    ),
    "a norm of one's own": (odd("unequal.OwnNorm", steps=1), "in step 0: gradients", "a BatchNorm with a forward of its own"),
    "bytes": (
        odd("equal.Plain", "trainer/communication=fp16", steps=1),
        "in step 0: gradients",
        "gradients that are sent in fewer bytes",
    ),
    "in gradients": (odd("noise.NoiseInGradients", steps=1), "after step 0: weights", "noise drawn per rank, by torch"),
    "in the optimizer": (odd("noise.NoiseInOptimizer", steps=1), "after step 0: weights", "noise drawn per rank, by torch"),
    "decay": (odd("unequal.TimeMajorDecay", data="TimeFirst"), "after step 1: weights of", "none of the causes known here"),
    "tokens": (odd("unequal.TokenMean", data="Sentences"), "in step 0: gradients", "a mean over the tokens of each process"),
    "negatives": (odd("unequal.Contrastive"), "in step 0: gradients", ALONE),
    "merged": (odd("unequal.Gathered", "trainer.accumulate_grad_batches=2"), "in step 0: gradients", "and accumulated batches"),
    "padding": (
        odd("equal.Plain", data="PaddedValidation"),
        "in the validation after step 1: validation samples",
        "a sampler that pads",
    ),
    "schedule": (
        odd("unequal.PerProcessSchedule", steps=4),
        "in step 2: learning rate",
        "a schedule that depends on the number of proc",
    ),
    "randn": (odd("noise.Noisy", steps=1), "in step 0: gradients", "noise drawn per rank, by torch"),
    "numpy": (odd("noise.NoiseOfNumpy", steps=1), "in step 0: gradients", "noise drawn per rank, by numpy"),
    "Python": (odd("noise.NoiseOfPython", steps=1), "in step 0: gradients", "noise drawn per rank, by Python"),
}
