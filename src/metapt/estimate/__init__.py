"""How long the jobs of a config will take, and what memory and disk they need: `metapt estimate`."""
