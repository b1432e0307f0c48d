"""Export model folders to ONNX, with proof that the graph gives the torch model's vectors."""
