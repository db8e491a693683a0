"""Target kubernetes: documents become objects of one namespace, through the API server and nothing else."""
