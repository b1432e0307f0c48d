"""Distilling: a small student learns from a strong teacher's embeddings of images that need no labels."""
