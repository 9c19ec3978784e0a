"""Data that lie in a bucket (gs://, s3:// and all that fsspec knows), without a mount.

`paths.data_path` is the door; `objects` reads ranges of bytes, and `asking` sends requests again.
"""
