"""Weights on their way from learners to all other roles: publisher, stores, clients, relays."""
