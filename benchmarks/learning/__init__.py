"""The learning table: scores on defaults, over several seeds, beside those that others published."""
