"""Near-duplicates: copies of one picture among the items of a gallery."""
