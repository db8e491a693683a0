"""HTTP interface. Host, origin and size of a request are checked before anything else."""
