"""The shared parts of domains that pre-train an encoder and fine-tune it: PT runs, FT runs and their tables."""
