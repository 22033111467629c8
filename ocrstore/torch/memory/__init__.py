"""Rows of a file as writable memory: private mappings, leases on them, copies, the page cache."""
