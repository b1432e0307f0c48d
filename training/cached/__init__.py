"""Training on what frozen layers gave: pooled features from a file, or maps of cached views."""
