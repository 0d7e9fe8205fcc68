"""The statistics of `regard.watch(statistics=[...])`, under a short name: `from regard.statistics import Rollout`."""

from regard.observe.statistics import *  # noqa: F403
from regard.observe.statistics import __all__ as __all__
