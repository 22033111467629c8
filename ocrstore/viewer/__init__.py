"""The local web viewer: shows the samples of a store in the browser."""
