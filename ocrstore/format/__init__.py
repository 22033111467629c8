"""The file format: reading and writing pages, extents, index and manifest (docs/FORMAT.md).

Nothing here depends on pictures, recipes or torch.
"""
