"""What leaves the house: a run in the form that others load."""
