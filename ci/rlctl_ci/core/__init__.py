"""The service without HTTP: its threads, a build from its commit to its end, its logs."""
