"""What this machine is and what it can do: facts read without importing anything heavy, and the conclusions."""

from trtkit.doctor.allows import Allowance
from trtkit.doctor.machine import Machine, inspect_machine

__all__ = ["Allowance", "Machine", "inspect_machine"]
