"""Reading a store in torch."""
