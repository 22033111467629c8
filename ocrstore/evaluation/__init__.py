"""Comparing what a detector found with what is there; needs neither torch nor pictures."""
