"""The local web viewer: a store's samples in a browser, and nothing else."""
