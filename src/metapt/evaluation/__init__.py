"""What is made of finished runs: the tidy metrics table, statistics, verdicts on claims, tables and figures. Knows no domain."""
