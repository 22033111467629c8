"""The parts of the scale study: stores, cells, memory limits, fits, and the page."""
