"""Sources through a recipe into a store: workers, resuming, what changed, reports."""
