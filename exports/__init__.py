"""Export model folders to ONNX, with proof that the graph gives the torch model's vectors."""

from zoo import errors  # noqa: F401  # with it `zoo`, which tells ONNX Runtime not to report what is done
