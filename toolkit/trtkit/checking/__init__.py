"""Says what cannot work before any work is done: rules as data, and what they are pointed at."""

from trtkit.checking.config_check import check_config

__all__ = ["check_config"]
