"""Generators of documents and data; they are not part of the installed packages."""
