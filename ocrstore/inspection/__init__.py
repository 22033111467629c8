"""Read facts about a store from its manifest, index and extent headers, as records.

Needs the core dependencies only. Payload is read for the picture of a single sample.
"""
