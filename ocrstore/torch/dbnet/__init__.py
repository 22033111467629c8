"""DBNet on Lightning, fed by a store: model, loss, post-processing, metric, module."""
