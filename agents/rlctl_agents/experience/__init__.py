"""Experience of one policy: rows into segments, segments into batches."""
