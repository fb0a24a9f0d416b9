"""Tasks in processes of this machine, or on a cluster."""
