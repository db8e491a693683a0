"""How a commit becomes what a target runs: one file each. A further one is a file, and a line in `hands.maker`."""
