"""What every domain shares that pre-trains an encoder and then fine-tunes it: PT runs by seed, FT over seeds, their tables."""
