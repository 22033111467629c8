"""The tests of ocrstore; `tests.strategies` is shared by the property tests."""
