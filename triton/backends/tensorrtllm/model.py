from trtkit.standin.model import StandIn as TritonPythonModel  # noqa: F401
