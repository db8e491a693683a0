"""Where documents become processes. One module a target; a backend is imported only when used."""
