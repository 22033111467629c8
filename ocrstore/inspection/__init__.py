"""Looking at a store: its facts, its integrity, its source, its samples, and what differs.

Everything here reads manifest, index and extent headers, needs the core dependencies only, and
gives records; the command line prints them. Payload is read for one sample's picture.
"""
