"""Episodes as data: recorded while they are played, and played again."""
