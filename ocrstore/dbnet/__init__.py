"""DBNet, a text detector, trained from stores: network, loss, training, prediction, evaluation."""

from ocrstore.errors import needs

with needs("torch"):
    import torch  # noqa: F401  # all modules here need it
