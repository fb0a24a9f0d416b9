"""Export of runs to other libraries, and import of Marian models."""
