"""Whether an answer came to its end. Knows chunks, no transport."""

from collections.abc import Callable, Iterable, Iterator

from trtkit.client.request import Chunk
from trtkit.errors import ServerError


def to_the_end(chunks: Iterable[Chunk], was_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
    """The chunks. Raises ServerError when they end without the last one, unless the caller cancelled the answer."""
    is_whole = False
    for chunk in chunks:
        yield chunk
        is_whole = chunk.is_final
    if not is_whole and not was_cancelled():
        raise broken_off()


def broken_off() -> ServerError:
    """The error of an answer that ends without its last chunk, as when the server dies."""
    return ServerError("the answer ended before its last part", "send the request again", code="SERVER")
