"""Stores as PyTorch data sets: batches by reference, yours to write on, in flat memory."""
