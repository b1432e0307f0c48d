"""Distillation: a small student learns from a teacher's embeddings, with labels or without."""
