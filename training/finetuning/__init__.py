"""Finetuning: a model fitted to a person's own pictures, and measured on classes that it never saw."""
