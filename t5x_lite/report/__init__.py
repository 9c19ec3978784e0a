"""HTML reports of training runs (`runs`), comparisons (`compare`), C4 (`c4`) and retrieval."""
