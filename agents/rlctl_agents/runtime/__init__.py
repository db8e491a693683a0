"""Runtime of every role process: command line, logs, metrics, health, files, session with the manager. No torch."""
