"""Images of a cluster: their content, their builders, their push. Only `programs` starts programs."""
