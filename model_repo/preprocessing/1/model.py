from trtkit.serving.preprocessing import Preprocessor as TritonPythonModel  # noqa: F401
