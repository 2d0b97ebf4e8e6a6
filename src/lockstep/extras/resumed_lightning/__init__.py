"""What Lightning's own callbacks, and schedules, need in a run that goes on: unfrozen parameters, averaged weights, finders."""
