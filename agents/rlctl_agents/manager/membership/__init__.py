"""Processes of a run: leases, learner groups, and what each is to do."""
