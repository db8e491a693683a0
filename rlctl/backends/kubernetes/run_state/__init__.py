"""Record of a run in its namespace: plan, revisions, keys, lock."""
