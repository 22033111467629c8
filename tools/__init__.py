"""Scripts of the project; `tools.bench` is the suite that compares ocrstore with its peers."""
