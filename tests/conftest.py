"""What all tests share."""

from hypothesis import settings

# Tests assert behaviour, never time: a busy machine is no failure. A failing example is printed so that it can be repeated.
settings.register_profile("orbitmq", deadline=None, print_blob=True)
settings.load_profile("orbitmq")
