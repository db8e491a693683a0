"""What a person sees: reports, progress, tables, problems."""
