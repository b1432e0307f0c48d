"""The command line: `zoo`."""
