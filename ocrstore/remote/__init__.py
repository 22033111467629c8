"""Stores in object storage: s3://, gs://, az://, https:// and file://."""
