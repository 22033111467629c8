"""Where pictures and polygons come from: one annotation dialect per module."""
