from trtkit.serving.bls import DraftTarget as TritonPythonModel  # noqa: F401
