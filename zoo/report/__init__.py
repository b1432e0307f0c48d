"""Pages that hold everything they show: one HTML file, its pictures inside, no request to anywhere."""
