"""Optional backends: a whole gallery in Milvus, and bulk embedding on a Ray cluster."""
