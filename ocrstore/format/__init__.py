"""The bytes of a store: pages, extents, index, manifest, and how they are written (docs/FORMAT.md).

Nothing here knows of pictures, recipes or torch.
"""
