"""Rules about the models of a Triton repository one by one: names, folders, ports, paths. Opens no engine."""

from collections import Counter
from collections.abc import Iterable, Iterator

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.repository import BLS, Repository, TritonModel


def _models(repository: Repository) -> Iterator[TritonModel]:
    yield from repository.models.values()


def _names(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        if model.name != model.folder.name:
            yield hit(model.place("name"), name=model.name, folder=model.folder.name)


def _twice(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for kind, ports in (("input", model.inputs), ("output", model.outputs)):
            # The same declaration twice is harmless, and NVIDIA's own ensemble template has one.
            for name, count in Counter(port.name for port in set(ports)).items():
                if count > 1:
                    yield hit(model.place(kind), name=name, count=count)


def _no_version(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        if not model.versions:
            yield hit(model.folder.name, model=model.name)


def _no_program(repository: Repository) -> Iterable[Hit]:
    # The llmapi model's program is NVIDIA's; the script that starts the build copies it out of the image.
    is_copied = (repository.base / "launch" / "serve.sh").is_file()
    for model in _models(repository):
        is_llmapi = model.llm is not None and is_copied
        if model.backend == "python" and model.versions and not model.has_program and not is_llmapi:
            yield hit(model.folder.name, model=model.name)


def _decoupled(repository: Repository) -> Iterable[Hit]:
    bls = repository.models.get(BLS)
    for model in repository.llm_models if bls else ():
        if bls is not None and bls.decoupled != model.decoupled:
            yield hit(
                bls.place("model_transaction_policy.decoupled"),
                bls=_flag(bls.decoupled),
                model=model.name,
                other=_flag(model.decoupled),
            )


def _order(repository: Repository) -> Iterable[Hit]:
    model = repository.models.get("postprocessing")
    streams = any(llm.decoupled for llm in repository.llm_models)
    if model is not None and streams and model.instances > 1 and not model.ordered:
        yield hit(model.place("instance_group.count"), count=model.instances)


def _paths(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for key in ("gpt_model_path", "tokenizer_dir"):
            path = model.parameter(key)
            if path is not None and not path.startswith("/") and not repository.resolve(path).is_dir():
                yield hit(model.place(f"parameters.{key}"), path=path, base=repository.base)


def _foreign_paths(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for key in ("gpt_model_path", "tokenizer_dir"):
            path = model.parameter(key)
            if path is not None and path.startswith("/") and not repository.resolve(path).is_dir():
                yield hit(model.place(f"parameters.{key}"), path=path)


def _no_engine_path(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        if model.parameter("gpt_model_path") is None:
            yield hit(model.place("parameters.gpt_model_path"), model=model.name)


def _tokenizers(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        path = model.parameter("tokenizer_dir")
        folder = repository.resolve(path) if path else None
        if folder is not None and folder.is_dir() and not any(folder.glob("tokenizer*")):
            yield hit(model.place("parameters.tokenizer_dir"), path=path)


def _flag(value: bool) -> str:
    return "true" if value else "false"


REPOSITORY_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="REPO-NAME",
        severity="error",
        looks_at="repository",
        when="a model's name is not that of its folder",
        cause="the model is called {name}, its folder {folder}",
        fix="write name: {folder}, or rename the folder",
        source="Triton's poll checks",
        find=_names,
        example=hit("tensorrt_llm_draft/config.pbtxt:name", name="tensorrt_llm", folder="tensorrt_llm_draft"),
    ),
    Rule(
        code="REPO-TWICE",
        severity="error",
        looks_at="repository",
        when="a model declares one input or output more than once, and differently",
        cause="{name} is declared in {count} ways; the server takes one of them without a word",
        fix="take out the wrong ones",
        source="tried with Triton 2.51, which does not catch it",
        find=_twice,
        example=hit("ensemble/config.pbtxt:output", name="sequence_length", count=2),
    ),
    Rule(
        code="REPO-VERSION",
        severity="error",
        looks_at="repository",
        when="a model has no numbered version folder",
        cause="{model} has no version folder",
        fix="make the folder 1; it may be empty for an ensemble or an engine",
        source="Triton's repository layout",
        find=_no_version,
        example=hit("tensorrt_llm", model="tensorrt_llm"),
    ),
    Rule(
        code="REPO-PROGRAM",
        severity="error",
        looks_at="repository",
        when="a model of backend python has no model.py",
        cause="{model} has no model.py; loading it hangs for ever",
        fix="add model.py to its version folder",
        source="tried with Triton 2.51",
        find=_no_program,
        example=hit("preprocessing", model="preprocessing"),
    ),
    Rule(
        code="REPO-DECOUPLED",
        severity="error",
        looks_at="repository",
        when="the BLS and an LLM model disagree about decoupled",
        cause="decoupled is {bls} here and {other} in {model}",
        fix="write the same value in all of them; streaming needs true",
        source="tensorrtllm_backend issues #626 and #177",
        find=_decoupled,
        example=hit(
            "tensorrt_llm_bls/config.pbtxt:model_transaction_policy.decoupled",
            bls="false",
            model="tensorrt_llm",
            other="true",
        ),
    ),
    Rule(
        code="REPO-ORDER",
        severity="warning",
        looks_at="repository",
        when="several postprocessing instances without preserve_ordering behind a streaming model",
        cause="{count} postprocessing instances return the pieces of a stream out of order",
        fix="write instance_group count 1, or dynamic_batching {{ preserve_ordering: true }}",
        source="tried with Triton 2.51: 10 of 10 streams",
        find=_order,
        example=hit("postprocessing/config.pbtxt:instance_group.count", count=4),
    ),
    Rule(
        code="REPO-PATH",
        severity="error",
        looks_at="repository",
        when="a relative engine or tokenizer path leads nowhere",
        cause="{path} is not in {base}",
        fix="build again, or correct the path; relative paths start at the folder around the repository",
        source="TensorRT-LLM issue #2440",
        find=_paths,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", path="engines/target", base="build/x"),
    ),
    Rule(
        code="REPO-FOREIGN-PATH",
        severity="note",
        looks_at="repository",
        when="an absolute engine or tokenizer path is not on this machine",
        cause="{path} is not on this machine, so it was not checked; it must exist inside the server's container",
        fix="check again where it is mounted",
        source="TensorRT-LLM issue #2440",
        find=_foreign_paths,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", path="/engines/target"),
    ),
    Rule(
        code="REPO-NO-ENGINE",
        severity="error",
        looks_at="repository",
        when="an LLM model names no engine",
        cause="{model} has an empty gpt_model_path",
        fix="write the engine directory as the server sees it",
        source="TensorRT-LLM issue #2440",
        find=_no_engine_path,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", model="tensorrt_llm"),
    ),
    Rule(
        code="REPO-TOKENIZER",
        severity="error",
        looks_at="repository",
        when="a tokenizer folder holds no tokenizer",
        cause="{path} holds no tokenizer files",
        fix="copy the tokenizer files of the target into it",
        source="preprocessing and postprocessing load it at start",
        find=_tokenizers,
        example=hit("preprocessing/config.pbtxt:parameters.tokenizer_dir", path="tokenizer"),
    ),
)
