"""Processes of a run: admission, leases, learner groups, and progress of the learners."""
