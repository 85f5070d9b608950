"""The digest that ties scales to the checkpoint they were measured on. Knows files, not what is in them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trtkit.artifacts import key_of, sha256_of
from trtkit.checkpoints.weights import open_weights
from trtkit.progress import OnProgress, Progress, silent

_FILES_AT_ONCE = 4


def checkpoint_digest(folder: Path, on_progress: OnProgress = silent) -> str:
    """Digest of config.json and of every weight file, by content; names in the folder count, times and places do not.

    Files are hashed side by side: one after the other this takes longer than converting them.
    """
    paths = [folder / "config.json", *open_weights(folder).files]
    total = sum(path.stat().st_size for path in paths)
    done, digests = 0, {}
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for path, digest in zip(paths, pool.map(sha256_of, paths), strict=True):
            digests[path.relative_to(folder).as_posix()] = digest
            done += path.stat().st_size
            on_progress(Progress("digest", done, total, "bytes"))
    return key_of(digests)
