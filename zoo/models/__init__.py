"""Models: cards, folders, networks, and what loads and verifies them."""
