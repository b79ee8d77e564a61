"""Evaluation of finished runs, for any domain: metrics, statistics, verdicts on claims, tables and figures."""
