"""Files of public sources: what they are, where they lie, and how they come whole.

`source` is what sources.yaml says. `places` tries the mirrors and addresses that may have a file; `transfer` brings it from one,
by way of `web` and `connections`. `verify` says what is wrong with a file, `failures` why a place did not give it. `listed` gets
many small files by a list of their sums.
"""
