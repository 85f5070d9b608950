"""Reading the server's log for the reason of a failure."""

from pathlib import Path

from trtkit.server.log import errors_since, failure

LOG = """\
W1129 14:51:28.270090 8174 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, no driver"
E1129 14:51:28.270234 8174 server.cc:241] "CudaDriverHelper has not been initialized."
I1129 14:51:28.300000 8174 model_lifecycle.cc:472] "loading: ensemble:1"
E1129 14:51:29.270234 8174 model_repository_manager.cc:1391] "Poll failed for model directory 'x': bad"
[libprotobuf ERROR text_format.cc:335] Error parsing text-format inference.ModelConfig: 3:1: no such field
"""


def test_error_lines_are_found_and_harmless_ones_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    found = errors_since(log)
    assert len(found) == 2
    assert "Poll failed" in found[0]
    assert "no such field" in found[1]


def test_only_what_was_written_after_the_offset_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    assert errors_since(log, len(LOG)) == []


def test_tritons_answer_wins_over_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    assert "the answer" in str(failure("not loaded", log, reason="the answer"))
    assert "Poll failed" in str(failure("not loaded", log))
    assert str(log) in failure("not loaded", log).fix
