"""What is recorded of a run on this machine: folders, state, revisions, locks."""
