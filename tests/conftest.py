"""For all tests."""

from hypothesis import settings

# how long one example takes says how busy the machine is
settings.register_profile("rlctl", deadline=None)
settings.load_profile("rlctl")
