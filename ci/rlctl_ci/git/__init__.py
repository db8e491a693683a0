"""Repositories: commits fetched by full name, and what git is allowed to do."""
