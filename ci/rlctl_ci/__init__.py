"""Webhook service: verifies a push, builds it, redeploys the run, watches it, and rolls back if the run gets worse."""
