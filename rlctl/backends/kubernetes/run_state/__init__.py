"""Record of a run in its namespace: state, revisions, keys, lock."""
