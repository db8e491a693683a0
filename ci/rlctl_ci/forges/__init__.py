"""Webhooks of forges: one file each, with a signature to be verified and a push to be read."""
