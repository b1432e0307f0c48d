"""Data sets and images: folders, tables, decoding and preprocessing."""
