"""How many examples Hypothesis tries: few in `make test`, all in `make test-all`."""

from hypothesis import settings

settings.register_profile("quick", max_examples=20)
settings.register_profile("whole", max_examples=300)
settings.load_profile("whole")
