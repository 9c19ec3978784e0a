"""Retrieval: exact search of vectors, faiss indexes, BM25, fusion of rankings, training data."""
