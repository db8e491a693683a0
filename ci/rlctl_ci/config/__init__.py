"""ci.yaml and the objects of the service on a cluster."""
