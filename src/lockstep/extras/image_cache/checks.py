"""What the arguments of a cached image folder accept."""

from lockstep.config.rules import TEXT, integer
from lockstep.extras.images.checks import check_folder

RULES = {"CachedImageFolder": {"size": integer(1), "cache_dir": TEXT.or_null()}}
CHECKS = {"CachedImageFolder": check_folder}
