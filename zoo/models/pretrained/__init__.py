"""Pretrained weights: where they are, what they say about themselves, and how their names fit an architecture."""
