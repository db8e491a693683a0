"""Programs that the service starts, with limits and an end."""
