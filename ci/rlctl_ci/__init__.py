"""The webhook service: a push is verified, built, redeployed, watched, and rolled back when the run is worse for it."""
