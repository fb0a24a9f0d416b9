"""Lines of text before and after the search: checking, splitting, choosing and joining translations."""
