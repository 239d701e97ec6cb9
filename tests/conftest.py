"""Settings for all tests."""

import os

from hypothesis import settings

# Before torch is imported: on few cores its threads fight each other and the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shared machines are slow now and then, so there is no deadline per example; a failing example is
# printed as a blob that repeats it anywhere.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")
