"""Routes of a collection and of the service."""
