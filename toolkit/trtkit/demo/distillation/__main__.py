"""python -m trtkit.demo.distillation write|train|export: makes the demo draft. Knows arguments, not the work."""

import argparse
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from trtkit.demo.distillation.export import export
from trtkit.demo.distillation.generation import LessonWriter
from trtkit.demo.distillation.lessons import Lessons
from trtkit.demo.distillation.student import Student, adopt_layer
from trtkit.demo.distillation.training import Training, restore

_EMBEDDING = "model.embed_tokens.weight"


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(prog="python -m trtkit.demo.distillation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    write = commands.add_parser("write", help="let the target write lessons, batch by batch, until the time is over")
    write.add_argument("--seed", type=int, required=True, help="another seed, other lessons")
    write.add_argument("--held-out", action="store_true", help="greedy answers on topics that no lesson is about")
    write.set_defaults(run=_write)
    train = commands.add_parser("train", help="train a draft; goes on with --student when it is there already")
    train.add_argument("--vocabulary", type=int, default=4096, help="tokens whose logits the draft computes")
    train.add_argument("--layers-of", type=Path, help="folder of a Hugging Face Llama whose layers are the start")
    train.add_argument("--layers", type=int, nargs="+", default=[0, 3], help="which of them")
    train.add_argument("--keep-layers", type=int, nargs="+", help="layers of the student that is there to go on with")
    train.add_argument("--student", type=Path, required=True, help="file to write, again and again")
    train.set_defaults(run=_train)
    for command in (write, train):
        command.add_argument("--lessons", type=Path, required=True, help="folder of lessons")
        command.add_argument("--minutes", type=float, required=True)
        command.add_argument("--threads", type=int, default=1)
    shipped = commands.add_parser("export", help="write a trained draft as the files that trtkit ships")
    shipped.add_argument("--student", type=Path, required=True)
    shipped.add_argument("--out", type=Path, required=True)
    shipped.set_defaults(run=_export)
    for command in (write, train, shipped):
        command.add_argument("--target", type=Path, required=True, help="the demo target's folder")
    arguments = parser.parse_args()
    torch.set_num_threads(getattr(arguments, "threads", 1))
    arguments.run(arguments)


def _write(arguments: argparse.Namespace) -> None:
    writer = LessonWriter(arguments.target, arguments.seed, held_out=arguments.held_out)
    kind = "held-out" if arguments.held_out else "lessons"
    arguments.lessons.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    number = 0
    while time.monotonic() < end:
        lessons = writer.write()
        lessons.save(arguments.lessons / f"{kind}-{arguments.seed}-{number:05}.safetensors")
        sys.stderr.write(f"{number}: {len(lessons.choices)} tokens\n")
        number += 1


def _train(arguments: argparse.Namespace) -> None:
    def lessons() -> Lessons:
        return Lessons.load(sorted(arguments.lessons.glob("lessons-*.safetensors")))

    held_out = Lessons.load(sorted(arguments.lessons.glob("held-out-*.safetensors")))
    embedding = _embedding(arguments.target)
    if arguments.student.is_file():
        student = restore(arguments.student, embedding)
        student.keep(arguments.keep_layers or range(len(student.layers)))
    else:
        student = _new_student(arguments, embedding, lessons())
    for grade in Training(student, 60 * arguments.minutes).run(lessons, held_out, arguments.student):
        sys.stderr.write(f"{grade}\n")


def _export(arguments: argparse.Namespace) -> None:
    embedding = _embedding(arguments.target)
    export(restore(arguments.student, embedding), len(embedding), arguments.out)


def _embedding(target: Path) -> Tensor:
    return load_file(target / "model.safetensors")[_EMBEDDING]


def _new_student(arguments: argparse.Namespace, embedding: Tensor, lessons: Lessons) -> Student:
    """The most frequent tokens of the answers, and the layers to start from."""
    counts = torch.bincount(lessons.choices[:, 0], minlength=len(embedding))
    student = Student(embedding, counts.topk(arguments.vocabulary).indices.sort().values, len(arguments.layers))
    if arguments.layers_of is not None:
        weights = load_file(arguments.layers_of / "model.safetensors")
        for layer, index in zip(student.layers, arguments.layers, strict=True):
            adopt_layer(layer, weights, index)
        with torch.no_grad():
            student.norm.copy_(weights["model.norm.weight"])
    return student


if __name__ == "__main__":
    main()
