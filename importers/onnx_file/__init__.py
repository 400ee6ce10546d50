"""ONNX models as models of the contract."""
