"""Weights on their way from learners to everyone else: publisher, stores, clients, relays."""
