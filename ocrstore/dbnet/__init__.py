"""DBNet, a text detector, trained from stores: network, loss, training, prediction, evaluation."""
