"""Output for people: reports, progress, checks."""
