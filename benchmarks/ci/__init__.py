"""The webhook service: hooks at a steady rate, and a push until its run is verified."""
