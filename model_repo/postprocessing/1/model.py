from trtkit.serving.postprocessing import Postprocessor as TritonPythonModel  # noqa: F401
