"""Write samples of a store in the formats of other tools; the counterpart of `sources`."""
