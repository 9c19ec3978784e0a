"""From vectors and terms to rankings: exact search, indexes, BM25, fusion."""
