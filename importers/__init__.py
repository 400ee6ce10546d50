"""Files of other runtimes as models of the contract: .tflite and ONNX."""
