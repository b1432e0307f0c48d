"""Export model folders to ONNX, with proof that the graph gives the torch model's vectors."""

import zoo  # noqa: F401  # before ONNX Runtime, which it tells not to report what is done
