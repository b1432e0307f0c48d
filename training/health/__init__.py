"""Health of training runs: validation, indicators, and findings in plain words."""
