"""Heads on the cached features of a trunk that stays as it is: `zoo features`, `zoo train NAME --features FILE`."""
