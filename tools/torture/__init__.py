"""A campaign of attacks on every command; see `python -m tools.torture --help`."""
