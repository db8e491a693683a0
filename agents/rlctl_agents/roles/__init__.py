"""The role processes: clock, signals and disk live here, arithmetic does not."""
