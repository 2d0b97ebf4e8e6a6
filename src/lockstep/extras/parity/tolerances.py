"""By how much two trainings that are equal may differ, by the bits of the precision."""

# Of one step from identical state, as max|a-b| / max|a|, of buffers entry by entry. Calibrated by the control, a permuted
# batch: over the models of benchmarks/parity.md its gradients differ by up to 4e-14 in float64, and by 1e-5 in float32 where
# no unit is at the boundary of its ReLU.
ONE_STEP = {64: 1e-10, 32: 1e-3, 16: 1e-1}
# What a single step of the control may excuse, as ten times its own difference: rounding, but amplified by the model.
AMPLIFIED = {64: 1e-8, 32: 1e-3, 16: 1e-1}
# A number that is held in fewer bits than its training computes in, as Lightning's and torchmetrics' metrics are.
HELD = {32: 1e-5, 16: 1e-1}
# A gradient of rounding alone is at most so large, beside the largest of its step.
NOTHING_BESIDE = {64: 1e-10, 32: 1e-5, 16: 1e-2}
# Where the control's loss differs by more within a single step it is another training, and tells nothing.
ANOTHER_TRAINING = {64: 1e-6, 32: 1e-4, 16: 1e-1}
ROUNDING = {64: 2.0**-52, 32: 2.0**-23, 16: 2.0**-8}  # of one operation: what a control that rounds alike is taken for
CONTROLS = 10.0  # the weights may drift this many times as far as the control's
SGD_64 = 1e-12  # nothing amplifies rounding in float64 with SGD: the weights then may drift this far at most
