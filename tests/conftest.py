"""Settings for all tests."""

from hypothesis import settings

# Shared machines are slow now and then, so there is no deadline per example; a failing example is
# printed as a blob that repeats it anywhere.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")
