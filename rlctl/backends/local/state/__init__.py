"""Record of a run on this machine: folders, state, revisions, locks."""
