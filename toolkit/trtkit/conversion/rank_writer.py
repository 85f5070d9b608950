"""Writes the rank files of a plan, stage by stage, and knows again those that an earlier run finished."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.conversion.encoding import EncoderOf
from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import RankFile, TensorHeader, header_bytes
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.write_lanes import WriteLanes
from trtkit.progress import OnProgress, Progress


@dataclass(frozen=True)
class WrittenFile:
    """One finished rank file. skipped: an earlier run had finished it."""

    name: str
    num_bytes: int
    crc32: str
    skipped: bool


class RankWriter:
    """Writes into `out`. key identifies source and options: only files finished under the same key are kept."""

    def __init__(self, out: Path, key: str, encoder_of: EncoderOf, source: SourceFiles) -> None:
        self._out = out
        self._key = key
        self._encoder_of = encoder_of
        self._source = source

    def headers(self, targets: Sequence[Target]) -> list[TensorHeader]:
        """The tensors of one rank file, in order."""
        return [header for target in targets for header in self._encoder_of(target).headers(target)]

    def finished(self, index: int, targets: Sequence[Target]) -> WrittenFile | None:
        """The rank file, when an earlier run with this key finished it and it still has its size.

        What was found in its tensors then is found again, since nobody reads them now.
        """
        path = self._path(index)
        try:
            record = json.loads(self._record(index).read_text(encoding="utf-8"))
            num_bytes = path.stat().st_size
            if record["key"] == self._key and num_bytes == file_bytes(self.headers(targets)):
                self._source.add_findings(record["findings"])
                return WrittenFile(path.name, num_bytes, record["crc32"], skipped=True)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def write_stage(self, ranks: dict[int, Sequence[Target]], on_progress: OnProgress) -> list[WrittenFile]:
        """Write the files of one pipeline stage together: ranks maps each rank's index to its targets."""
        found = {index: self.finished(index, targets) for index, targets in ranks.items()}
        if all(found.values()):
            return [file for file in found.values() if file is not None]
        with ExitStack() as stack:
            lanes = stack.enter_context(WriteLanes())
            sinks: list[RankFile | None] = []
            for index, targets in ranks.items():
                sinks.append(None if found[index] else self._open(index, targets, lanes))
                stack.callback(_abandon, sinks[-1])
            rows = list(zip(*ranks.values(), strict=True))
            for done, row in enumerate(rows, start=1):
                self._encoder_of(row[0]).write(row, sinks)
                on_progress(Progress("convert", done, len(rows), "tensors"))
            self._source.check_unchanged()
            written = [
                self._finish(index, ranks[index], sink) for index, sink in zip(ranks, sinks, strict=True) if sink
            ]
        kept = [file for file in found.values() if file is not None]
        return sorted(kept + written, key=lambda file: (len(file.name), file.name))

    def _open(self, index: int, targets: Sequence[Target], lanes: WriteLanes) -> RankFile:
        for stale in (self._record(index), self._path(index)):
            stale.unlink(missing_ok=True)
        return RankFile(self._path(index), self.headers(targets), lanes)

    def _finish(self, index: int, targets: Sequence[Target], sink: RankFile) -> WrittenFile:
        crc32 = sink.finish()
        read = {piece.source for target in targets for piece in target.slices}
        record = {"key": self._key, "crc32": crc32, "findings": self._source.findings_in(read)}
        write_text(self._record(index), json.dumps(record) + "\n")
        return WrittenFile(sink.path.name, sink.num_bytes, crc32, skipped=False)

    def _path(self, index: int) -> Path:
        return self._out / f"rank{index}.safetensors"

    def _record(self, index: int) -> Path:
        return self._out / f".rank{index}.done.json"


def file_bytes(headers: Sequence[TensorHeader]) -> int:
    """The size of a rank file with these tensors."""
    return len(header_bytes(headers)) + sum(header.num_bytes for header in headers)


def _abandon(sink: RankFile | None) -> None:
    if sink is not None:
        sink.abandon()
