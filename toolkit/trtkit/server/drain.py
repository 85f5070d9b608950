"""A server's last minutes: models that clients talk to go before those they call. Knows HTTP, ends no process."""

import functools
import time
from collections.abc import Sequence

from trtkit.server.admin import AdminClient
from trtkit.server.processes import wait_until
from trtkit.serving.contract import BLS, ENSEMBLE

_POLL_S = 0.1


def drain(admin: AdminClient, models: Sequence[str], timeout_s: float) -> None:
    """Let the requests under way finish, for timeout_s at most, and take no new ones. `models` are all that are loaded.

    Triton asked to end refuses every request from that moment on, those of the draft-target loop to target and draft
    too, which ends all answers under way. So the loop and the ensemble are unloaded first: a model that is being
    unloaded finishes what it has, and meanwhile the others are there. A server that does not unload, because it is gone
    or loads its models itself, is not waited for.
    """
    ends_at = time.monotonic() + timeout_s
    called_by_clients = [model for model in models if model in (BLS, ENSEMBLE)]
    for group in (called_by_clients, [model for model in models if model not in called_by_clients]):
        leaving = {model for model in group if admin.unload(model).status == 200}
        wait_until(functools.partial(_have_left, admin, leaving), ends_at - time.monotonic(), _POLL_S)


def _have_left(admin: AdminClient, models: set[str]) -> bool:
    return not models & admin.unloading()
