"""Output for people: reports, progress, tables, problems."""
