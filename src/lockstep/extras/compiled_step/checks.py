"""What the arguments accept."""

from lockstep.config.rules import YES_NO, number, one_of

RULES = {"CompileStep": {"enabled": YES_NO, "backend": one_of("inductor", "aot_eager", "eager"), "cache_gib": number(0)}}
