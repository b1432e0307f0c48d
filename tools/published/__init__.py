"""Readers of the printed tables, one file per paper: each knows the layout of its paper's text."""
