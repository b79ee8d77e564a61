"""The engine: a config becomes a plan of jobs, which are run, recorded and timed."""
