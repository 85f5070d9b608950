"""Responses sent by another thread, so that the next step need not wait for Triton to take them. Knows no tensors."""

from concurrent.futures import Executor, Future

from trtkit.errors import TrtkitError
from trtkit.serving.batch import Reply
from trtkit.serving.tensor import Outputs


class BackgroundReply:
    """A Reply of one answer, used by one thread. Responses leave in order, one at a time.

    Only a response that is not the last is sent in the background: whoever returns from the last one, or from a
    failure, has left nothing behind.
    """

    def __init__(self, reply: Reply, executor: Executor) -> None:
        self._reply = reply
        self._executor = executor
        self._under_way: Future[None] | None = None

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """One response; raises what sending the one before raised."""
        self._settle()
        if final:
            self._reply.send(outputs, final=True)
        else:
            self._under_way = self._executor.submit(self._reply.send, outputs, final=False)

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        """A response that is an error."""
        if self._under_way is not None:
            self._under_way.exception()  # what it raised is no news to a caller that fails already
        self._reply.fail(error, final=final)

    def is_cancelled(self) -> bool:
        """Whether the caller gave the request up."""
        self._settle()
        return self._reply.is_cancelled()

    def _settle(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
