"""A web page and a JSON API over one model."""
