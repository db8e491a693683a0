"""HTTP of the manager: control API, status page, metrics, profiles."""
