"""Experience of one policy: from rows to segments, from segments to batches."""
