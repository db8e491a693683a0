"""Models that a run has stored: which there are, and how one of them gets into a folder."""
