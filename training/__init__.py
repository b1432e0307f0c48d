"""Train embedding models by recipe into model folders. Imports torch; nothing else in the project imports this."""
