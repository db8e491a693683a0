"""Changes of a run: processes begun, converged, and ended in good order."""
