"""A deployment's tokens against the record: verdicts, what their pattern points at, and the report."""
