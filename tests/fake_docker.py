"""A docker of a few lines, for tests of container mode: notes its arguments, answers Triton, ends on `stop`."""

import json
import sys
from pathlib import Path

SCRIPT = """#!{python} -P
import http.server, json, os, pathlib, signal, sys

notes = pathlib.Path({notes!r})
with (notes / "calls.jsonl").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
arguments = sys.argv[1:]
pid_file = notes / "pid"
if arguments[0] == "stop":
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    sys.exit(0)
if (notes / "fails").exists():
    sys.stderr.write("docker: Error response from daemon: could not select device driver\\n")
    sys.exit(125)
pid_file.write_text(str(os.getpid()))
published = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--publish"]
host, port, _ = published[0].split(":")
loaded = set({ready!r})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        parts = self.path.split("/")
        ready = parts[2] == "health" or parts[3] in loaded
        self.answer(200 if ready else 400)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        *_, model, action = self.path.split("/")
        with (notes / "actions.jsonl").open("a") as file:
            file.write(json.dumps([action, model]) + "\\n")
        loaded.add(model)
        self.answer(200)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def write_fake(folder: Path, program: str, *, ready: tuple[str, ...] = ()) -> Path:
    """An executable called `program` in `folder`; `ready`: models that need no load. Returns the notes."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / f"{program}-notes"
    notes.mkdir()
    path = folder / program
    path.write_text(SCRIPT.format(python=sys.executable, notes=str(notes), ready=ready))
    path.chmod(0o755)
    return notes


def actions(notes: Path) -> list[list[str]]:
    """What the server inside was asked to do: action and model, in order."""
    return [json.loads(line) for line in (notes / "actions.jsonl").read_text().splitlines()]


def calls(notes: Path) -> list[list[str]]:
    """The arguments of every call so far."""
    return [json.loads(line) for line in (notes / "calls.jsonl").read_text().splitlines()]
