"""How a commit becomes what a target runs: one file each. A further builder is a file and a line in `find`."""
