"""Remote procedure calls with a deadline; large replies take turns."""
